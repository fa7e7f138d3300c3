// 8-bit convolution on packed weights, and depthwise convolution of 8-bit channels.
#include <algorithm>
#include <cmath>

#include "backend/cpu/conv_quantized.h"
#include "backend/cpu/cpu_stream.h"
#include "ops/conv/window.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/quant/packed_product_cpu.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using Q = QOperand;

cpu::ConvShape conv_shape(const ir::NodeView& node) {
  const Dims x = node.in_dims(Q::x), w = node.in_dims(Q::w);
  const Window window = make_window(node.attrs, {w[2], w[3]}, {x[1], x[2]});
  const WindowAxis &a = window[1], &b = window[2];
  cpu::ConvShape s{.n = x[0], .h = x[1], .w = x[2], .c = x[3], .oc = w[0]};
  auto narrow = [](int64_t v) { return static_cast<int>(v); };  // window attributes are below 2^24
  s.kh = narrow(a.kernel);
  s.kw = narrow(b.kernel);
  s.stride_h = narrow(a.stride);
  s.stride_w = narrow(b.stride);
  s.dilation_h = narrow(a.dilation);
  s.dilation_w = narrow(b.dilation);
  s.pad_top = narrow(a.pad_begin);
  s.pad_left = narrow(b.pad_begin);
  s.pad_bottom = narrow(a.pad_end);
  s.pad_right = narrow(b.pad_end);
  s.groups = node.attrs.get_int("group", 1);
  return s;
}

bool has_negative_padding(const cpu::ConvShape& s) {
  return std::min(std::min(s.pad_top, s.pad_left), std::min(s.pad_bottom, s.pad_right)) < 0;
}

ir::Refusal refuse_conv(const ir::NodeView& node) {
  if (auto why = refuse_packed_product(node)) return why;
  if (has_negative_padding(conv_shape(node))) return "padding is negative";
  return std::nullopt;
}

/// Packed groups of one weight, shared through the model's cache.
struct PackedGroups {
  tensor::Tensor memory;
  std::vector<cpu::PackedQuantMatrix> groups;
};

ir::BoundKernel prepare_conv(const ir::KernelInit& init) {
  const cpu::ConvShape shape = conv_shape(init.node);
  const tensor::Tensor& w = *init.node.value(Q::w);
  const std::string format = base::concat("qconv ", cpu::to_string(cpu::best_isa()), " group ", shape.groups);
  const auto packed = init.packs.get<PackedGroups>(ir::pack_key(w, format), [&] {
    auto made = std::make_shared<PackedGroups>();
    made->memory =
        tensor::Tensor::empty(DType::u8, {static_cast<int64_t>(cpu::packed_quant_conv_bytes(shape))});
    for (int64_t g = 0; g < shape.groups; ++g) {
      made->groups.push_back(
          cpu::pack_quant_conv(shape, {w.raw(), w.dtype() == DType::i8}, g, made->memory.mutable_raw()));
    }
    return made;
  });
  auto p = std::make_shared<PackedProduct>();
  p->memory = packed;
  p->groups = packed->groups;
  finish_packed(init.node, read_product(init.node, shape.oc), *p);
  auto run = [shape, p](const ir::RunArgs& args) {
    const cpu::QuantConvArgs call{.shape = shape,
                                  .x = args.in[Q::x],
                                  .input = p->input,
                                  .groups = p->groups.data(),
                                  .y = args.out[0],
                                  .epilogue = p->epilogue};
    cpu::quant_conv2d_nhwc(call, args.workspace, cpu::pool_of(args.stream));
  };
  return {run, static_cast<int64_t>(cpu::quant_conv2d_workspace_bytes(shape, init.threads)), 1u << Q::w};
}

/// Depthwise: weights as 16-bit words [kh, kw, c] minus their zero points.
struct DepthwisePlan {
  cpu::ConvShape shape;
  std::vector<int16_t> weights;
  std::vector<int32_t> bias;  // [c]
  std::vector<float> scale;   // [c], product scale / y scale
  int32_t x_zero = 0;
  float zero = 0, lowest = 0, highest = 255;
};

ir::Refusal refuse_depthwise(const ir::NodeView& node) {
  if (auto why = refuse_conv(node)) return why;
  const cpu::ConvShape s = conv_shape(node);
  if (s.groups != s.c || s.oc != s.c) return "groups are not single channels";
  if (node.out[0].dtype == DType::f32) return "the result is f32";
  return std::nullopt;
}

std::shared_ptr<const DepthwisePlan> depthwise_plan(const ir::NodeView& node) {
  auto p = std::make_shared<DepthwisePlan>();
  p->shape = conv_shape(node);
  const QProduct q = read_product(node, p->shape.c);
  const std::vector<int64_t> w = node.value(Q::w)->to_ints();
  const size_t taps = static_cast<size_t>(p->shape.kh * p->shape.kw), c = static_cast<size_t>(p->shape.c);
  p->weights.resize(taps * c);
  for (size_t i = 0; i < c; ++i) {
    for (size_t t = 0; t < taps; ++t)
      p->weights[t * c + i] = static_cast<int16_t>(w[i * taps + t] - q.w_zero[i]);
    p->scale.push_back(static_cast<float>(q.product_scale[i] / q.y_scale));
  }
  p->bias = q.bias;
  p->x_zero = q.x_zero;
  p->zero = static_cast<float>(q.y_zero);
  p->lowest = static_cast<float>(q.lowest());
  p->highest = static_cast<float>(q.highest());
  return p;
}

// Channels of one pass: sums stay in registers or L1.
constexpr int64_t kChannels = 64;

/// Up to kChannels channels, from `first` on, of the output pixel at (row, column).
template <class X, class Y>
void depthwise_pixel(const DepthwisePlan& p, const X* image, std::array<int64_t, 2> at, int64_t first, Y* y) {
  const auto [oh, ow] = at;
  const int64_t count = std::min(kChannels, p.shape.c - first);
  const cpu::ConvShape& s = p.shape;
  int32_t sum[kChannels];
  std::copy_n(p.bias.data() + first, count, sum);
  for (int kh = 0; kh < s.kh; ++kh) {
    const int64_t ih = oh * s.stride_h - s.pad_top + int64_t{kh} * s.dilation_h;
    if (ih < 0 || ih >= s.h) continue;
    for (int kw = 0; kw < s.kw; ++kw) {
      const int64_t iw = ow * s.stride_w - s.pad_left + int64_t{kw} * s.dilation_w;
      if (iw < 0 || iw >= s.w) continue;
      const X* x = image + (ih * s.w + iw) * s.c + first;
      const int16_t* w = p.weights.data() + (int64_t{kh} * s.kw + kw) * s.c + first;
      const int32_t zero = p.x_zero;
      for (int64_t i = 0; i < count; ++i) sum[i] += (static_cast<int32_t>(x[i]) - zero) * w[i];
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const float v = static_cast<float>(sum[i]) * p.scale[static_cast<size_t>(first + i)] + p.zero;
    const float clamped = std::min(std::max(v, p.lowest), p.highest);
    // Adding 1.5 * 2^23 rounds half to even.
    y[i] = static_cast<Y>(static_cast<int32_t>((clamped + 12582912.0f) - 12582912.0f));
  }
}

template <class X, class Y>
ir::BoundKernel bind_depthwise(std::shared_ptr<const DepthwisePlan> p) {
  auto run = [p](const ir::RunArgs& args) {
    const cpu::ConvShape& s = p->shape;
    const int64_t height = s.out_h(), width = s.out_w();
    cpu::pool_of(args.stream).run(s.n * height, [&](int64_t row) {
      const X* image = in_ptr<X>(args, Q::x) + row / height * s.h * s.w * s.c;
      Y* y = out_ptr<Y>(args, 0) + row * width * s.c;
      for (int64_t ow = 0; ow < width; ++ow) {
        for (int64_t c = 0; c < s.c; c += kChannels) {
          depthwise_pixel(*p, image, {row % height, ow}, c, y + ow * s.c + c);
        }
      }
    });
  };
  return {run, 0, 1u << Q::w};
}

ir::BoundKernel prepare_depthwise(const ir::KernelInit& init) {
  auto p = depthwise_plan(init.node);
  const bool xs = init.node.in[Q::x].dtype == DType::i8, ys = init.node.out[0].dtype == DType::i8;
  if (xs) return ys ? bind_depthwise<int8_t, int8_t>(p) : bind_depthwise<int8_t, uint8_t>(p);
  return ys ? bind_depthwise<uint8_t, int8_t>(p) : bind_depthwise<uint8_t, uint8_t>(p);
}

}  // namespace

ir::Refusal refuse_packed_product(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  if (auto why = refuse_unknown_parameters(node)) return why;
  const ActivationKind kind = activation_of(node.attrs).kind;
  const bool clamps =
      kind == ActivationKind::none || kind == ActivationKind::relu || kind == ActivationKind::clip;
  if (node.out[0].dtype != DType::f32 && !clamps)
    return "the activation is no clamp, which 8-bit results need";
  return std::nullopt;
}

void finish_packed(const ir::NodeView& node, const QProduct& q, PackedProduct& p) {
  const size_t channels = static_cast<size_t>(q.channels), each = channels / p.groups.size();
  p.input = {.is_signed = node.in[Q::x].dtype == DType::i8, .zero = q.x_zero};
  p.offsets.resize(channels);
  p.row_factors.resize(channels);
  bool by_row = false;
  for (size_t g = 0; g < p.groups.size(); ++g) {
    const cpu::QuantOffsets out{p.offsets.data() + g * each, p.row_factors.data() + g * each};
    by_row |=
        cpu::quant_offsets(p.groups[g], p.input, q.bias.data() + g * each, q.w_zero.data() + g * each, out);
  }
  for (double s : q.product_scale) p.scale.push_back(static_cast<float>(q.to_float() ? s : s / q.y_scale));
  cpu::QuantEpilogue& e = p.epilogue;
  e.output = q.to_float()         ? cpu::QuantOutput::f32
             : q.out == DType::u8 ? cpu::QuantOutput::u8
                                  : cpu::QuantOutput::s8;
  e.offsets = p.offsets.data();
  e.row_factors = by_row ? p.row_factors.data() : nullptr;
  e.scale = p.scale.data();
  if (q.to_float()) {
    e.real = epilogue_of(q.activation);
  } else {
    e.zero = q.y_zero;
    e.lo = q.lowest();
    e.hi = q.highest();
  }
}

std::vector<ir::Kernel> qconv_fast_kernels() {
  return {{.name = "depthwise_8_bit", .refuse = refuse_depthwise, .prepare = prepare_depthwise},
          {.name = "packed_8_bit", .refuse = refuse_conv, .prepare = prepare_conv}};
}

}  // namespace trireme::ops
