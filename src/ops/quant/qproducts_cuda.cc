// 8-bit products, convolutions and sums on NVIDIA GPUs: qlinear, qconv_nhwc, qadd, matmul_integer and
// dynamic_quantize_linear.
#include <algorithm>

#include "backend/cuda/quant/qproduct.h"
#include "ops/conv/window.h"
#include "ops/cuda_kernels.h"
#include "ops/dense/gemm_cuda.h"
#include "ops/device_pack.h"
#include "ops/kernel_forms.h"
#include "ops/quant/qproduct.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Q = QOperand;

/// An 8-bit constant as signed values: unsigned ones minus 128.
std::vector<int8_t> signed_values(const Tensor& t) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(t.raw());
  std::vector<int8_t> out(static_cast<size_t>(t.elements()));
  const int shift = t.dtype() == DType::u8 ? 0x80 : 0;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int8_t>(bytes[i] ^ shift);
  return out;
}

/// Weights in the layout of the device: [padded n, padded k], or [k, n] for a depthwise convolution; with the
/// sums of each channel.
struct SignedWeights {
  int64_t n = 0, k = 0;
  bool is_depthwise = false;
  bool is_transposed = false;  // the matrix was stored as [n, k]
  std::vector<int8_t> packed;
  std::vector<int32_t> sums;  // [padded n]

  SignedWeights(int64_t channels, int64_t depth, bool depthwise)
      : n(channels),
        k(depth),
        is_depthwise(depthwise),
        packed(static_cast<size_t>(depthwise ? depth * channels
                                             : cuda::quant_padded(channels) * cuda::quant_padded(depth))),
        sums(static_cast<size_t>(cuda::quant_padded(channels))) {}
  /// Tells layouts of one constant apart.
  std::string_view form() const {
    return is_depthwise ? "signed taps" : is_transposed ? "signed t" : "signed n";
  }
  void set(int64_t channel, int64_t at, int8_t value) {
    const int64_t place = is_depthwise ? at * n + channel : channel * cuda::quant_padded(k) + at;
    packed[static_cast<size_t>(place)] = value;
    sums[static_cast<size_t>(channel)] += value;
  }
};

SignedWeights matrix_weights(const Tensor& w, bool transposed) {
  const int64_t n = w.dims()[transposed ? 0 : 1], k = w.dims()[transposed ? 1 : 0];
  const std::vector<int8_t> values = signed_values(w);
  SignedWeights out(n, k, false);
  out.is_transposed = transposed;
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t i = 0; i < k; ++i)
      out.set(c, i, values[static_cast<size_t>(transposed ? c * k + i : i * n + c)]);
  }
  return out;
}

/// Weights [oc, c / group, kh, kw], with k in the order (kh, kw, c).
SignedWeights window_weights(const Tensor& w, bool depthwise) {
  const Dims& d = w.dims();
  const int64_t taps = d[2] * d[3];
  const std::vector<int8_t> values = signed_values(w);
  SignedWeights out(d[0], taps * d[1], depthwise);
  for (int64_t o = 0; o < d[0]; ++o) {
    for (int64_t c = 0; c < d[1]; ++c) {
      for (int64_t t = 0; t < taps; ++t)
        out.set(o, t * d[1] + c, values[static_cast<size_t>((o * d[1] + c) * taps + t)]);
    }
  }
  return out;
}

/// The parts of a product on the device: weights, and each channel's factor, offset and zero point.
struct DeviceProduct {
  std::shared_ptr<const void> weights, numbers;
  cuda::QuantFinish finish;
  int8_t outside = 0;
  bool needs_row_sums = false;
};

DeviceProduct device_product(const ir::KernelInit& init, const SignedWeights& w) {
  const ir::NodeView& node = init.node;
  const QProduct q = read_product(node, w.n);
  const int32_t x_shift = node.in[Q::x].dtype == DType::u8 ? 128 : 0;
  const int32_t w_shift = node.in[Q::w].dtype == DType::u8 ? 128 : 0, x_zero = q.x_zero - x_shift;
  const bool folds = !q.to_float() && is_clamp(q.activation) && q.has_bounds();
  std::vector<float> factor(w.sums.size());
  std::vector<int32_t> offset(w.sums.size()), zero(w.sums.size());
  for (size_t c = 0; c < static_cast<size_t>(w.n); ++c) {
    zero[c] = q.w_zero[c] - w_shift;
    factor[c] = static_cast<float>(folds ? q.product_scale[c] / q.y_scale : q.product_scale[c]);
    offset[c] = static_cast<int32_t>(q.bias[c] - int64_t{x_zero} * w.sums[c] + w.k * x_zero * zero[c]);
  }
  DeviceProduct p{.outside = static_cast<int8_t>(x_zero)};
  p.needs_row_sums = std::any_of(zero.begin(), zero.end(), [](int32_t z) { return z != 0; });
  p.finish.type = q.out;
  p.finish.n = w.n;
  if (!folds) p.finish.act = activation_form(q.activation);
  p.finish.y_scale = static_cast<float>(q.y_scale);
  if (!q.to_float()) {
    const bool is_signed = q.out == DType::i8;
    p.finish.zero = static_cast<float>(q.y_zero);
    p.finish.low = static_cast<float>(folds ? q.lowest() : is_signed ? -128 : 0);
    p.finish.high = static_cast<float>(folds ? q.highest() : is_signed ? 127 : 255);
  }
  if (init.device == nullptr) return p;
  p.weights = device_pack(init, ir::pack_key(*node.value(Q::w), w.form()), [&] {
    std::vector<std::byte> bytes;
    append_bytes(bytes, w.packed);
    return bytes;
  });
  std::vector<std::byte> numbers;
  append_bytes(numbers, factor);
  append_bytes(numbers, offset);
  append_bytes(numbers, zero);
  p.numbers = on_device(*init.device, numbers);
  p.finish.factor = static_cast<const float*>(p.numbers.get());
  p.finish.offset = static_cast<const int32_t*>(p.numbers.get()) + factor.size();
  if (p.needs_row_sums) p.finish.w_zero = p.finish.offset + factor.size();
  return p;
}

/// Order of the workspace: packed rows, their sums, the exact product, the library's workspace.
struct ProductRoom {
  int64_t rows_bytes, sums_bytes, acc_bytes;
  ProductRoom(int64_t rows, int64_t n, int64_t k)
      : rows_bytes(align_up(rows * cuda::quant_padded(k))),
        sums_bytes(align_up(rows * 4)),
        acc_bytes(align_up(rows * cuda::quant_padded(n) * 4)) {}
  int64_t before_gemm() const { return rows_bytes + sums_bytes + acc_bytes; }
  static std::byte* at(const ir::RunArgs& args, int64_t offset) {
    return static_cast<std::byte*>(args.workspace) + offset;
  }
};

/// Plans rows of `window` times constant weights [n, k] whose content is not known yet.
ir::BoundKernel plan_product(const ir::KernelInit& init, const cuda::QuantWindow& window, int64_t n,
                             int64_t k) {
  const auto gemm = cuda::prepare_quant_product({init.device, &init.packs}, window.rows(), n, k);
  return {.workspace_bytes = ProductRoom(window.rows(), n, k).before_gemm() + gemm->workspace_bytes(),
          .unread_inputs = 1u << Q::w};
}

/// Binds rows of `window` times constant weights.
ir::BoundKernel bind_product(const ir::KernelInit& init, const cuda::QuantWindow& window,
                             const SignedWeights& w) {
  const auto p = std::make_shared<const DeviceProduct>(device_product(init, w));
  const int64_t rows = window.rows();
  const ProductRoom room(rows, w.n, w.k);
  const auto gemm = cuda::prepare_quant_product({init.device, &init.packs}, rows, w.n, w.k);
  const bool is_signed = init.node.in[Q::x].dtype == DType::i8;
  auto run = [=](const ir::RunArgs& args) {
    auto* packed = reinterpret_cast<int8_t*>(ProductRoom::at(args, 0));
    auto* sums = reinterpret_cast<int32_t*>(ProductRoom::at(args, room.rows_bytes));
    auto* acc = reinterpret_cast<int32_t*>(ProductRoom::at(args, room.rows_bytes + room.sums_bytes));
    cuda::pack_quant_rows(args.stream, {.x = args.in[Q::x],
                                        .is_signed = is_signed,
                                        .outside = p->outside,
                                        .to = packed,
                                        .sums = p->needs_row_sums ? sums : nullptr,
                                        .window = window});
    gemm->run(args.stream, {.a = packed, .b = p->weights.get(), .out = acc},
              ProductRoom::at(args, room.before_gemm()));
    cuda::QuantFinish f = p->finish;
    f.acc = acc;
    f.row_sums = sums;
    f.y = args.out[0];
    f.rows = rows;
    cuda::finish_quantized(args.stream, f);
  };
  return {run, room.before_gemm() + gemm->workspace_bytes(), 1u << Q::w};
}

ir::BoundKernel prepare_qlinear(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(Q::x);
  const bool transposed = init.node.attrs.get_int("transposed", 0) != 0;
  const cuda::QuantWindow window{.batch = product(x, 0, x.size() - 1), .channels = x.back()};
  if (lacks_content(init.node)) {
    const Dims w = init.node.in_dims(Q::w);
    return plan_product(init, window, w[transposed ? 0 : 1], w[transposed ? 1 : 0]);
  }
  return bind_product(init, window, matrix_weights(*init.node.value(Q::w), transposed));
}

cuda::QuantWindow window_of(const ir::NodeView& node) {
  const Dims x = node.in_dims(Q::x), w = node.in_dims(Q::w);
  const Window window = make_window(node.attrs, {w[2], w[3]}, {x[1], x[2]});
  const WindowAxis &h = window[1], &v = window[2];
  return {.batch = x[0],
          .in_h = h.in,
          .in_w = v.in,
          .channels = x[3],
          .out_h = h.out,
          .out_w = v.out,
          .kernel_h = h.kernel,
          .kernel_w = v.kernel,
          .stride_h = h.stride,
          .stride_w = v.stride,
          .dilation_h = h.dilation,
          .dilation_w = v.dilation,
          .pad_h = h.pad_begin,
          .pad_w = v.pad_begin};
}

bool is_depthwise(const ir::NodeView& node) {
  const Dims w = node.in_dims(Q::w);
  return w[1] == 1 && w[0] == node.attrs.get_int("group", 1);
}

ir::Refusal refuse_qconv(const ir::NodeView& node) {
  if (ir::Refusal no = refuse_unknown_parameters(node)) return no;
  if (node.attrs.get_int("group", 1) != 1 && !is_depthwise(node))
    return "channels are grouped, but not each by itself";
  return std::nullopt;
}

ir::BoundKernel bind_depthwise(const ir::KernelInit& init, const cuda::QuantWindow& window) {
  if (lacks_content(init.node)) return {.unread_inputs = 1u << Q::w};
  const SignedWeights w = window_weights(*init.node.value(Q::w), true);
  const auto p = std::make_shared<const DeviceProduct>(device_product(init, w));
  const bool is_signed = init.node.in[Q::x].dtype == DType::i8;
  auto run = [=](const ir::RunArgs& args) {
    cuda::QuantDepthwise a{.x = args.in[Q::x],
                           .is_signed = is_signed,
                           .outside = p->outside,
                           .w = static_cast<const int8_t*>(p->weights.get()),
                           .window = window,
                           .finish = p->finish};
    a.finish.y = args.out[0];
    cuda::quant_depthwise(args.stream, a);
  };
  return {run, 0, 1u << Q::w};
}

ir::BoundKernel prepare_qconv(const ir::KernelInit& init) {
  const cuda::QuantWindow window = window_of(init.node);
  // A depthwise convolution of one channel is an ordinary matrix product.
  if (is_depthwise(init.node) && window.channels > 1) return bind_depthwise(init, window);
  if (lacks_content(init.node)) {
    const Dims w = init.node.in_dims(Q::w);
    return plan_product(init, window, w[0], w[1] * w[2] * w[3]);
  }
  return bind_product(init, window, window_weights(*init.node.value(Q::w), false));
}

ir::BoundKernel prepare_device_qadd(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const QSum sum = read_sum(node);
  const cuda::QuantAdd fixed{.a_signed = node.in[0].dtype == DType::i8,
                             .b_signed = node.in[3].dtype == DType::i8,
                             .y_signed = node.out[0].dtype == DType::i8,
                             .fa = sum.fa,
                             .fb = sum.fb,
                             .shift = sum.shift,
                             .low = sum.lowest,
                             .high = sum.highest,
                             .n = tensor::element_count(node.out_dims(0))};
  return {[fixed](const ir::RunArgs& args) {
    cuda::QuantAdd a = fixed;
    a.a = args.in[0];
    a.b = args.in[3];
    a.y = args.out[0];
    cuda::quant_add(args.stream, a);
  }};
}

ir::Refusal refuse_integer(const ir::NodeView& node) {
  for (size_t i : {0, 1}) {
    if (auto why = refuse_dtype(node, i, {DType::u8, DType::i8})) return why;
  }
  if (node.in_dims(1).size() != 2) return "the second operand is not one matrix";
  return std::nullopt;
}

/// The second operand is packed once if it is constant, otherwise in every run.
ir::BoundKernel prepare_integer(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const MatmulShape s = matmul_shape(node.in_dims(0), node.in_dims(1));
  const int64_t rows = s.batches() * s.m;
  const bool is_known = node.value(1) != nullptr && init.device != nullptr;
  const auto many = [&](size_t i) { return node.present(i) && tensor::element_count(node.in_dims(i)) > 1; };
  const cuda::IntegerFinish fixed{.a_signed = node.in[0].dtype == DType::i8,
                                  .b_signed = node.in[1].dtype == DType::i8,
                                  .a_per_row = many(2),
                                  .b_per_column = many(3),
                                  .rows = rows,
                                  .n = s.n,
                                  .k = s.k,
                                  .a_rows = s.m};
  const ProductRoom room(rows, s.n, s.k);
  const int64_t matrix_bytes = cuda::quant_padded(s.n) * cuda::quant_padded(s.k);
  std::shared_ptr<const void> known;
  if (is_known) {
    known = device_pack(init, ir::pack_key(*node.value(1), "signed with sums"), [&] {
      const SignedWeights w = matrix_weights(*node.value(1), false);
      std::vector<std::byte> bytes;
      append_bytes(bytes, w.packed);
      append_bytes(bytes, w.sums);
      return bytes;
    });
  }
  const auto gemm = cuda::prepare_quant_product({init.device, &init.packs}, rows, s.n, s.k);
  const int64_t columns_bytes = is_known ? 0 : align_up(matrix_bytes + cuda::quant_padded(s.n) * 4);
  const bool has_a = node.present(2), has_b = node.present(3);
  auto run = [=](const ir::RunArgs& args) {
    auto* packed = reinterpret_cast<int8_t*>(ProductRoom::at(args, 0));
    auto* sums = reinterpret_cast<int32_t*>(ProductRoom::at(args, room.rows_bytes));
    auto* acc = reinterpret_cast<int32_t*>(ProductRoom::at(args, room.rows_bytes + room.sums_bytes));
    auto* columns = reinterpret_cast<int8_t*>(ProductRoom::at(args, room.before_gemm()));
    if (!is_known) {
      cuda::pack_quant_columns(args.stream, {.b = args.in[1],
                                             .is_signed = fixed.b_signed,
                                             .to = columns,
                                             .sums = reinterpret_cast<int32_t*>(columns + matrix_bytes),
                                             .k = s.k,
                                             .n = s.n});
    }
    const auto* right = is_known ? static_cast<const int8_t*>(known.get()) : columns;
    cuda::pack_quant_rows(args.stream, {.x = args.in[0],
                                        .is_signed = fixed.a_signed,
                                        .to = packed,
                                        .sums = sums,
                                        .window = {.batch = rows, .channels = s.k}});
    gemm->run(args.stream, {.a = packed, .b = right, .out = acc},
              ProductRoom::at(args, room.before_gemm() + columns_bytes));
    cuda::IntegerFinish f = fixed;
    f.acc = acc;
    f.y = out_ptr<int32_t>(args, 0);
    f.a_zero = has_a ? args.in[2] : nullptr;
    f.b_zero = has_b ? args.in[3] : nullptr;
    f.row_sums = sums;
    f.column_sums = reinterpret_cast<const int32_t*>(right + matrix_bytes);
    cuda::finish_integers(args.stream, f);
  };
  return {run, room.before_gemm() + columns_bytes + gemm->workspace_bytes(), is_known ? 2u : 0u};
}

ir::BoundKernel prepare_dynamic(const ir::KernelInit& init) {
  const int64_t n = tensor::element_count(init.node.in_dims(0));
  auto run = [n](const ir::RunArgs& args) {
    cuda::dynamic_quantize(args.stream, {.x = in_ptr<float>(args, 0),
                                         .y = out_ptr<uint8_t>(args, 0),
                                         .zero = out_ptr<uint8_t>(args, 2),
                                         .scale = out_ptr<float>(args, 1),
                                         .n = n,
                                         .workspace = args.workspace});
  };
  return {run, cuda::dynamic_quantize_workspace_bytes()};
}

}  // namespace

std::vector<CudaKernels> qproducts_cuda_kernels() {
  return {
      {"qlinear", {{.name = "gemm_8_bit", .refuse = refuse_unknown_parameters, .prepare = prepare_qlinear}}},
      {"qconv_nhwc", {{.name = "windows_8_bit", .refuse = refuse_qconv, .prepare = prepare_qconv}}},
      {"qadd", {{.name = "flat", .refuse = refuse_sum, .prepare = prepare_device_qadd}}},
      {"matmul_integer", {{.name = "gemm_8_bit", .refuse = refuse_integer, .prepare = prepare_integer}}},
      {"dynamic_quantize_linear",
       {{.name = "two_passes",
         .refuse = [](const ir::NodeView& n) { return refuse_dtype(n, 0, {DType::f32}); },
         .prepare = prepare_dynamic}}}};
}

}  // namespace trireme::ops
