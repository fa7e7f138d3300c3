// 8-bit convolution with packed weights, and depthwise convolution of 8-bit channels.
#include <algorithm>
#include <cmath>

#include "backend/cpu/conv/conv_quantized.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/conv/depthwise_nhwc.h"
#include "backend/cpu/conv_forms/quant_groups.h"
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

/// Packed groups, or blocks of them, of one weight, shared through the model's cache.
struct PackedGroups {
  tensor::Tensor memory;
  std::vector<cpu::PackedQuantMatrix> groups;
};

/// The scale of each sum of a product with 8-bit results, and of one with f32 results.
float sum_scale(const QProduct& q, double s) { return static_cast<float>(q.to_float() ? s : s / q.y_scale); }

bool has_scales_below_one(const QProduct& q) {
  return std::all_of(q.product_scale.begin(), q.product_scale.end(),
                     [&](double s) { return std::abs(sum_scale(q, s)) < 1.0f; });
}

/// Whether blocks of groups may compute a product of this shape; what else they need is in its numbers.
bool may_join_groups(const ir::NodeView& node, const cpu::ConvShape& shape) {
  return node.out[0].dtype != DType::f32 && cpu::quant_groups_fits(shape);
}

/// Weights between the groups of a block are zero, and results leave the tiles as bytes.
bool joins_groups(const ir::NodeView& node, const cpu::ConvShape& shape, const QProduct& q) {
  const int32_t neutral = node.in[Q::w].dtype == DType::i8 ? 0 : 128;  // the byte that is packed as zero
  return may_join_groups(node, shape) && has_scales_below_one(q) &&
         std::all_of(q.w_zero.begin(), q.w_zero.end(), [&](int32_t zero) { return zero == neutral; });
}

std::shared_ptr<const PackedGroups> pack_groups(const ir::KernelInit& init, const cpu::ConvShape& shape,
                                                bool joined) {
  const tensor::Tensor& w = *init.node.value(Q::w);
  const cpu::QuantConvWeights weights{w.raw(), w.dtype() == DType::i8};
  // Dilation decides which form reads padded lines, so convolutions that share a weight may differ in it.
  const std::string format =
      base::concat(joined ? "qconv joined " : "qconv ", cpu::to_string(cpu::best_isa()), " group ",
                   shape.groups, cpu::quant_conv_reads_planes(shape) ? " lines" : " taps");
  return init.packs.get<PackedGroups>(ir::pack_key(w, format), [&] {
    auto made = std::make_shared<PackedGroups>();
    const size_t bytes = joined ? cpu::packed_quant_groups_bytes(shape) : cpu::packed_quant_conv_bytes(shape);
    made->memory = tensor::Tensor::empty(DType::u8, {static_cast<int64_t>(bytes)});
    std::byte* memory = made->memory.mutable_raw();
    if (joined) {
      made->groups = cpu::pack_quant_groups(shape, weights, memory);
    } else {
      for (int64_t g = 0; g < shape.groups; ++g)
        made->groups.push_back(cpu::pack_quant_conv(shape, weights, g, memory));
    }
    return made;
  });
}

ir::BoundKernel prepare_conv(const ir::KernelInit& init) {
  const cpu::ConvShape shape = conv_shape(init.node);
  size_t workspace = cpu::quant_conv2d_workspace_bytes(shape, init.threads);
  if (may_join_groups(init.node, shape))
    workspace = std::max(workspace, cpu::quant_groups_workspace_bytes(shape, init.threads));
  ir::BoundKernel bound{.workspace_bytes = static_cast<int64_t>(workspace), .unread_inputs = 1u << Q::w};
  if (lacks_content(init.node)) return bound;
  const QProduct q = read_product(init.node, shape.oc);
  const bool joined = joins_groups(init.node, shape, q);
  const auto packed = pack_groups(init, shape, joined);
  auto p = std::make_shared<PackedProduct>();
  p->memory = packed;
  p->groups = packed->groups;
  finish_packed(init.node, q, *p);
  bound.run = [shape, p, joined](const ir::RunArgs& args) {
    const cpu::QuantConvArgs call{.shape = shape,
                                  .x = args.in[Q::x],
                                  .input = p->input,
                                  .groups = p->groups.data(),
                                  .y = args.out[0],
                                  .epilogue = p->epilogue};
    const auto run = joined ? cpu::quant_groups_nhwc : cpu::quant_conv2d_nhwc;
    run(call, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

/// Sets scales, output type and clamp of a product whose offsets are already set.
void set_epilogue(const QProduct& q, PackedProduct& p) {
  for (double s : q.product_scale) p.scale.push_back(sum_scale(q, s));
  cpu::QuantEpilogue& e = p.epilogue;
  e.output = q.to_float()         ? cpu::QuantOutput::f32
             : q.out == DType::u8 ? cpu::QuantOutput::u8
                                  : cpu::QuantOutput::s8;
  e.offsets = p.offsets.data();
  e.scale = p.scale.data();
  e.scales_below_one = has_scales_below_one(q);
  if (q.to_float()) {
    e.real = epilogue_of(q.activation);
  } else {
    e.zero = q.y_zero;
    e.lo = q.lowest();
    e.hi = q.highest();
  }
}

constexpr int64_t kMaxDepthwiseTaps = 256;

ir::Refusal refuse_depthwise(const ir::NodeView& node) {
  if (auto why = refuse_conv(node)) return why;
  const cpu::ConvShape s = conv_shape(node);
  if (s.groups != s.c || s.oc != s.c) return "groups are not single channels";
  if (node.out[0].dtype == DType::f32) return "the result is f32";
  if (int64_t{s.kh} * s.kw > kMaxDepthwiseTaps)
    return base::concat("the window has over ", kMaxDepthwiseTaps, " taps");
  return std::nullopt;
}

/// Depthwise weights as exact integers in f32 [kh, kw, c]; epilogue.offsets of `product` are their sums.
struct PackedDepthwise {
  cpu::ConvShape shape;
  std::vector<float> weights;
  std::vector<char> dots;  // the packed form of byte dot products, or empty
  PackedProduct product;
};

std::shared_ptr<const PackedDepthwise> pack_depthwise(const ir::NodeView& node) {
  auto p = std::make_shared<PackedDepthwise>();
  p->shape = conv_shape(node);
  const tensor::Tensor& w = *node.value(Q::w);
  const QProduct q = read_product(node, p->shape.oc);
  PackedProduct& product = p->product;
  product.input = {.is_signed = node.in[Q::x].dtype == DType::i8, .zero = q.x_zero};
  product.offsets.resize(static_cast<size_t>(q.channels));
  p->weights.resize(static_cast<size_t>(w.elements()));
  cpu::pack_quant_depthwise({p->shape, w.raw(), w.dtype() == DType::i8, q.w_zero.data(), q.bias.data()},
                            product.input, {p->weights.data(), product.offsets.data()});
  set_epilogue(q, product);
  p->dots.resize(cpu::packed_depthwise_dot_bytes(p->shape));
  if (!cpu::pack_depthwise_dot({p->shape, w.raw(), w.dtype() == DType::i8, q.w_zero.data(), q.bias.data()},
                               product.input, product.scale.data(), p->dots.data())) {
    p->dots.clear();
  }
  return p;
}

ir::BoundKernel prepare_depthwise(const ir::KernelInit& init) {
  if (lacks_content(init.node)) return {.unread_inputs = 1u << Q::w};
  const auto p = pack_depthwise(init.node);
  auto run = [p](const ir::RunArgs& args) {
    const cpu::QuantDepthwiseArgs call{.shape = p->shape,
                                       .x = args.in[Q::x],
                                       .input = p->product.input,
                                       .weights = p->weights.data(),
                                       .y = args.out[0],
                                       .epilogue = p->product.epilogue,
                                       .dots = p->dots.empty() ? nullptr : p->dots.data()};
    cpu::quant_depthwise_nhwc(call, cpu::pool_of(args.stream));
  };
  return {run, 0, 1u << Q::w};
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
  if (lacks_content(node)) return std::nullopt;  // absent content is assumed to be finite
  const QProduct q = read_product(node, node.out_dims(0).back());
  if (!q.to_float() && !q.has_bounds()) return "the activation bounds steps that are not positive";
  for (double s : q.product_scale) {
    if (!std::isfinite(static_cast<float>(s / (q.to_float() ? 1 : q.y_scale)))) return "a scale overflows";
  }
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
  set_epilogue(q, p);
  p.epilogue.row_factors = by_row ? p.row_factors.data() : nullptr;
}

std::vector<ir::Kernel> qconv_fast_kernels() {
  return {{.name = "depthwise_8_bit", .refuse = refuse_depthwise, .prepare = prepare_depthwise},
          {.name = "packed_8_bit", .refuse = refuse_conv, .prepare = prepare_conv}};
}

}  // namespace trireme::ops
