// Kernels of qlinear, qconv_nhwc and qadd on CPU: packed 8-bit products, and plain integer loops.
#include <algorithm>
#include <cmath>

#include "backend/cpu/quant/quantized_add.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/conv/window.h"
#include "ops/kernel_forms.h"
#include "ops/quant/element_codec.h"
#include "ops/quant/packed_product_cpu.h"
#include "ops/quant/qproduct.h"
#include "ops/quant/qproduct_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using Q = QOperand;

/// Writes the result of one exact sum.
void store(const QProduct& p, int64_t channel, int64_t sum, void* y, int64_t at) {
  const size_t c = static_cast<size_t>(channel);
  const double real = activate(p.activation, double(sum + p.bias[c]) * p.product_scale[c]);
  if (p.to_float()) {
    static_cast<float*>(y)[at] = static_cast<float>(real);
    return;
  }
  const IntegerRange range = range_of(p.out);
  const double quotient = real / p.y_scale;  // for any scales: NaN gives the zero point
  const double q = std::isnan(quotient) ? p.y_zero : std::nearbyint(quotient) + p.y_zero;
  write_integer(p.out, y, at,
                static_cast<int64_t>(std::clamp(q, double(range.lowest), double(range.highest))));
}

/// Extents of a quantized matrix product.
struct MatrixPlan {
  int64_t m, k, n;
  bool transposed;
};

MatrixPlan matrix_plan(const ir::NodeView& node) {
  const Dims x = node.in_dims(Q::x);
  return {product(x, 0, x.size() - 1), x.back(), node.out_dims(0).back(),
          node.attrs.get_int("transposed", 0) != 0};
}

ir::BoundKernel prepare_qlinear_reference(const ir::KernelInit& init) {
  if (lacks_content(init.node)) return {};
  const MatrixPlan m = matrix_plan(init.node);
  const auto p = std::make_shared<const QProduct>(read_product(init.node, m.n));
  const DType xt = init.node.in[Q::x].dtype, wt = init.node.in[Q::w].dtype;
  return {[=](const ir::RunArgs& args) {
    cpu::pool_of(args.stream).run(m.m, [&](int64_t row) {
      for (int64_t j = 0; j < m.n; ++j) {
        int64_t sum = 0;
        const int64_t zero = p->w_zero[static_cast<size_t>(j)];
        for (int64_t l = 0; l < m.k; ++l) {
          const int64_t w =
              static_cast<int64_t>(read_element(wt, args.in[Q::w], m.transposed ? j * m.k + l : l * m.n + j));
          sum +=
              (static_cast<int64_t>(read_element(xt, args.in[Q::x], row * m.k + l)) - p->x_zero) * (w - zero);
        }
        store(*p, j, sum, args.out[0], row * m.n + j);
      }
    });
  }};
}

/// Packs a weight matrix once per model; the offsets depend on the bias and zero points of this node.
std::shared_ptr<const PackedProduct> pack(const ir::KernelInit& init, const MatrixPlan& m, bool transposed) {
  const tensor::Tensor& w = *init.node.value(Q::w);
  auto p = std::make_shared<PackedProduct>();
  const QProduct q = read_product(init.node, m.n);
  const cpu::QuantMatrixB b{.data = w.raw(),
                            .is_signed = w.dtype() == DType::i8,
                            .taps = 1,
                            .run = m.k,
                            .n = m.n,
                            .ld = transposed ? m.k : m.n,
                            .transposed = transposed};
  struct Packed {
    tensor::Tensor memory;
    cpu::PackedQuantMatrix matrix;
  };
  const std::string format =
      base::concat("qgemm ", cpu::to_string(cpu::best_isa()), transposed ? " t" : " n");
  const auto packed = init.packs.get<Packed>(ir::pack_key(w, format), [&] {
    auto made = std::make_shared<Packed>();
    made->memory =
        tensor::Tensor::empty(DType::u8, {static_cast<int64_t>(cpu::packed_quant_bytes(1, m.k, m.n))});
    made->matrix = cpu::pack_quant_b(b, made->memory.mutable_raw());
    return made;
  });
  p->memory = packed;
  p->groups = {packed->matrix};
  finish_packed(init.node, q, *p);
  return p;
}

ir::BoundKernel bind_packed(const ir::KernelInit& init, const MatrixPlan& m, bool transposed) {
  const cpu::PackedQuantMatrix form{.run = m.k, .n = m.n, .depth = m.k, .isa = cpu::best_isa()};
  ir::BoundKernel bound{
      .workspace_bytes = static_cast<int64_t>(cpu::qgemm_workspace_bytes(m.m, form, init.threads)),
      .unread_inputs = 1u << Q::w};
  if (lacks_content(init.node)) return bound;
  const auto p = pack(init, m, transposed);
  bound.run = [p, m](const ir::RunArgs& args) {
    const cpu::QuantGemmArgs call{.m = m.m,
                                  .a = args.in[Q::x],
                                  .lda = m.k,
                                  .input = p->input,
                                  .b = p->groups[0],
                                  .c = args.out[0],
                                  .ldc = m.n,
                                  .epilogue = p->epilogue};
    cpu::qgemm(call, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

struct QConvPlan {
  Window window;
  int64_t batch, channels, out_channels, group;
};

QConvPlan conv_plan(const ir::NodeView& node) {
  const Dims x = node.in_dims(Q::x), w = node.in_dims(Q::w);
  return {make_window(node.attrs, {w[2], w[3]}, {x[1], x[2]}), x[0], x[3], w[0],
          node.attrs.get_int("group", 1)};
}

ir::Refusal refuse_pointwise(const ir::NodeView& node) {
  if (auto why = refuse_packed_product(node)) return why;
  const QConvPlan p = conv_plan(node);
  const WindowAxis &h = p.window[1], &w = p.window[2];
  const bool plain =
      h.kernel == 1 && w.kernel == 1 && h.stride == 1 && w.stride == 1 && h.out == h.in && w.out == w.in;
  if (!plain || h.pad_begin != 0 || w.pad_begin != 0) return "the window is not 1 x 1 with stride 1";
  if (p.group != 1) return "channels are grouped";
  return std::nullopt;
}

ir::BoundKernel prepare_pointwise(const ir::KernelInit& init) {
  const QConvPlan p = conv_plan(init.node);
  return bind_packed(init, {p.batch * p.window.out_points(), p.channels, p.out_channels, true}, true);
}

/// The exact sum of one output point.
template <class X, class W>
int64_t conv_sum(const QConvPlan& p, const QProduct& q, const X* x, const W* w, std::array<int64_t, 4> at) {
  const auto [n, oh, ow, o] = at;
  const WindowAxis &ah = p.window[1], &aw = p.window[2];
  const int64_t each = p.channels / p.group, first = o / (p.out_channels / p.group) * each;
  const int64_t w_zero = q.w_zero[static_cast<size_t>(o)];
  int64_t sum = 0;
  for (int64_t kh = 0; kh < ah.kernel; ++kh) {
    const int64_t ih = oh * ah.stride - ah.pad_begin + kh * ah.dilation;
    if (ih < 0 || ih >= ah.in) continue;
    for (int64_t kw = 0; kw < aw.kernel; ++kw) {
      const int64_t iw = ow * aw.stride - aw.pad_begin + kw * aw.dilation;
      if (iw < 0 || iw >= aw.in) continue;
      const X* pixel = x + ((n * ah.in + ih) * aw.in + iw) * p.channels + first;
      const W* tap = w + (o * each * ah.kernel + kh) * aw.kernel + kw;
      for (int64_t c = 0; c < each; ++c)
        sum += (pixel[c] - q.x_zero) * (tap[c * ah.kernel * aw.kernel] - w_zero);
    }
  }
  return sum;
}

template <class X, class W>
ir::BoundKernel bind_conv_reference(const ir::NodeView& node) {
  const QConvPlan p = conv_plan(node);
  const auto q = std::make_shared<const QProduct>(read_product(node, p.out_channels));
  return {[p, q](const ir::RunArgs& args) {
    const int64_t height = p.window[1].out, width = p.window[2].out;
    cpu::pool_of(args.stream).run(p.batch * height, [&](int64_t row) {
      for (int64_t ow = 0; ow < width; ++ow) {
        for (int64_t o = 0; o < p.out_channels; ++o) {
          const int64_t sum = conv_sum(p, *q, in_ptr<X>(args, Q::x), in_ptr<W>(args, Q::w),
                                       {row / height, row % height, ow, o});
          store(*q, o, sum, args.out[0], (row * width + ow) * p.out_channels + o);
        }
      }
    });
  }};
}

ir::BoundKernel prepare_conv_reference(const ir::KernelInit& init) {
  if (lacks_content(init.node)) return {};
  const bool xs = init.node.in[Q::x].dtype == DType::i8, ws = init.node.in[Q::w].dtype == DType::i8;
  if (xs)
    return ws ? bind_conv_reference<int8_t, int8_t>(init.node)
              : bind_conv_reference<int8_t, uint8_t>(init.node);
  return ws ? bind_conv_reference<uint8_t, int8_t>(init.node)
            : bind_conv_reference<uint8_t, uint8_t>(init.node);
}

/// A sum takes two multiply-adds per element.
struct AddPlan {
  int64_t n;
  QSum sum;
};

template <class A, class B, class Y>
ir::BoundKernel bind_qadd(const AddPlan& p) {
  return {[p](const ir::RunArgs& args) {
    cpu::pool_of(args.stream).for_range(p.n, 16384, [&](int64_t begin, int64_t end) {
      const A* a = in_ptr<A>(args, 0);
      const B* b = in_ptr<B>(args, 3);
      Y* y = out_ptr<Y>(args, 0);
      for (int64_t i = begin; i < end; ++i) {
        const float v =
            static_cast<float>(a[i]) * p.sum.fa + static_cast<float>(b[i]) * p.sum.fb + p.sum.shift;
        // Adding and subtracting 1.5 * 2^23 rounds |v| < 2^22 to nearest even.
        const float clamped = std::min(std::max(v, p.sum.lowest), p.sum.highest);
        y[i] = static_cast<Y>(static_cast<int32_t>((clamped + 12582912.0f) - 12582912.0f));
      }
    });
  }};
}

/// If all three have the same type, the vector kernel applies.
ir::BoundKernel bind_same_qadd(const AddPlan& p, bool is_signed) {
  return {[p, is_signed](const ir::RunArgs& args) {
    cpu::quantized_add({args.in[0], args.in[3], args.out[0], p.n, is_signed, p.sum.fa, p.sum.fb, p.sum.shift,
                        p.sum.lowest, p.sum.highest},
                       cpu::pool_of(args.stream));
  }};
}

ir::BoundKernel prepare_qadd(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const AddPlan p{tensor::element_count(node.out_dims(0)), read_sum(node)};
  const bool a = node.in[0].dtype == DType::i8, b = node.in[3].dtype == DType::i8,
             y = node.out[0].dtype == DType::i8;
  if (a == b && a == y) return bind_same_qadd(p, a);
  if (a) {
    if (b) return y ? bind_qadd<int8_t, int8_t, int8_t>(p) : bind_qadd<int8_t, int8_t, uint8_t>(p);
    return y ? bind_qadd<int8_t, uint8_t, int8_t>(p) : bind_qadd<int8_t, uint8_t, uint8_t>(p);
  }
  if (b) return y ? bind_qadd<uint8_t, int8_t, int8_t>(p) : bind_qadd<uint8_t, int8_t, uint8_t>(p);
  return y ? bind_qadd<uint8_t, uint8_t, int8_t>(p) : bind_qadd<uint8_t, uint8_t, uint8_t>(p);
}

}  // namespace

std::vector<ir::Kernel> qlinear_cpu_kernels() {
  auto prepare = [](const ir::KernelInit& init) {
    const MatrixPlan m = matrix_plan(init.node);
    return bind_packed(init, m, m.transposed);
  };
  return {{.name = "packed_8_bit", .refuse = refuse_packed_product, .prepare = prepare},
          {.name = "reference",
           .is_reference = true,
           .refuse = refuse_unknown_parameters,
           .prepare = prepare_qlinear_reference}};
}

std::vector<ir::Kernel> qconv_nhwc_cpu_kernels() {
  std::vector<ir::Kernel> kernels{
      {.name = "pointwise_8_bit", .refuse = refuse_pointwise, .prepare = prepare_pointwise}};
  for (ir::Kernel& k : qconv_fast_kernels()) kernels.push_back(std::move(k));
  kernels.push_back({.name = "reference",
                     .is_reference = true,
                     .refuse = refuse_unknown_parameters,
                     .prepare = prepare_conv_reference});
  return kernels;
}

std::vector<ir::Kernel> qadd_cpu_kernels() {
  return {{.name = "plain", .refuse = refuse_sum, .prepare = prepare_qadd}};
}

}  // namespace trireme::ops
