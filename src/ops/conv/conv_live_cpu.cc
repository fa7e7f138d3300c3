// conv_nhwc with weights that change every step: these are packed or transformed into the workspace first.
#include "ops/conv/conv_kernels_cpu.h"

#include "backend/cpu/conv/conv_pack.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/conv_forms/conv_choice.h"
#include "backend/cpu/conv/depthwise_nhwc.h"
#include "backend/cpu/conv/grouped_nhwc.h"
#include "backend/cpu/conv_forms/depthwise_lines.h"
#include "ops/conv/conv_shape_cpu.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

ir::Refusal refuse_live(const ir::NodeView& n) {
  if (const auto why = refuse_dtype(n, 0, {tensor::DType::f32})) return why;
  const tensor::Tensor* constant = n.value(1);
  if (constant != nullptr && constant->dtype() == tensor::DType::f32)
    return "weights are constant: packed once, ahead";
  if (n.in[1].shape.elements().value_or(0) == 0) return "weights are empty";
  if (const auto why = refuse_conv_axes(n)) return why;
  const cpu::ConvShape s = conv_shape(n);
  if (const auto why = refuse_conv_operands(n, s)) return why;
  return refuse_conv_shape(s, conv_result(n));
}

ir::Refusal refuse_live_depthwise(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_live(n)) return reason;
  const cpu::ConvShape s = conv_shape(n);
  if (s.groups != s.c || s.oc != s.c)
    return base::concat(s.groups, " groups of ", s.c, " channels: not depthwise");
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  return std::nullopt;
}

ir::Refusal refuse_live_depthwise_lines(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_live_depthwise(n)) return reason;
  if (!cpu::depthwise_lines_pays(conv_shape(n))) return "kernel does not pay for copies of lines";
  return std::nullopt;
}

ir::Refusal refuse_live_winograd(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_live(n)) return reason;
  const cpu::ConvShape s = conv_shape(n);
  if (const ir::Refusal reason = refuse_not_three_by_three(s)) return reason;
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  if (!cpu::winograd_fits(s)) return "padding is above 2";
  if (s.out_h() < 4 || s.out_w() < 4) return base::concat("output of ", s.out_h(), " x ", s.out_w());
  return std::nullopt;
}

cpu::ImageLayout live_layout(const ir::NodeView& n, const cpu::ConvShape& s) {
  // With one channel both layouts are the same; kernels read planes in place.
  return conv_reads_nchw(n.attrs) || s.c == 1 ? cpu::ImageLayout::nchw : cpu::ImageLayout::nhwc;
}

ir::Refusal refuse_live_implicit(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_live(n)) return reason;
  const cpu::ConvShape s = conv_shape(n);
  if (!cpu::conv_packs_planes(s, live_layout(n, s)) && !cpu::pack_view_takes(cpu::forward_view(s, nullptr)))
    return base::concat("kernel of ", s.kh * s.kw, " taps");
  return std::nullopt;
}

ir::Refusal refuse_live_grouped(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_live(n)) return reason;
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  if (!cpu::grouped_pays(conv_shape(n))) return "groups leave lanes empty or fill products";
  return std::nullopt;
}

ir::BoundKernel prepare_live_depthwise(const ir::KernelInit& init) {
  const cpu::ConvShape shape = conv_shape(init.node);
  const size_t operands = init.node.in.size();
  ir::BoundKernel bound{.workspace_bytes = shape.c * shape.kh * shape.kw * 4};
  bound.run = [=, epilogue = epilogue_of(activation_of(init.node.attrs))](const ir::RunArgs& args) {
    float* packed = static_cast<float*>(args.workspace);
    cpu::pack_depthwise(shape, in_ptr<float>(args, 1), packed);
    cpu::DepthwiseArgs d{.shape = shape,
                         .x = in_ptr<float>(args, 0),
                         .weights = packed,
                         .y = out_ptr<float>(args, 0),
                         .epilogue = epilogue};
    bind_epilogue(d.epilogue, args, operands);
    cpu::depthwise_nhwc(d, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_live_depthwise_lines(const ir::KernelInit& init) {
  const cpu::ConvShape shape = conv_shape(init.node);
  const int64_t packed = align_up(static_cast<int64_t>(cpu::packed_depthwise_lines_bytes(shape)));
  const size_t operands = init.node.in.size();
  ir::BoundKernel bound;
  bound.workspace_bytes =
      packed + static_cast<int64_t>(cpu::depthwise_lines_workspace_bytes(shape, init.threads));
  bound.run = [=, epilogue = epilogue_of(activation_of(init.node.attrs))](const ir::RunArgs& args) {
    cpu::DepthwiseLinesArgs a{
        .shape = shape, .x = in_ptr<float>(args, 0), .y = out_ptr<float>(args, 0), .epilogue = epilogue};
    a.weights = cpu::pack_depthwise_lines(shape, in_ptr<float>(args, 1), args.workspace);
    bind_epilogue(a.epilogue, args, operands);
    cpu::depthwise_lines_nhwc(a, static_cast<char*>(args.workspace) + packed, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_live_winograd(const ir::KernelInit& init) {
  const cpu::ConvShape shape = conv_shape(init.node);
  constexpr cpu::WinogradTile kTile = cpu::WinogradTile::four;
  const int64_t packed =
      align_up(static_cast<int64_t>(cpu::winograd_view_bytes(cpu::forward_view(shape, nullptr), kTile)));
  const size_t operands = init.node.in.size();
  ir::BoundKernel bound;
  bound.workspace_bytes =
      packed + static_cast<int64_t>(cpu::winograd_workspace_bytes(shape, kTile, init.threads));
  bound.run = [=, epilogue = epilogue_of(activation_of(init.node.attrs))](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    cpu::WinogradArgs a{
        .shape = shape, .x = in_ptr<float>(args, 0), .y = out_ptr<float>(args, 0), .epilogue = epilogue};
    a.weights =
        cpu::transform_view(cpu::forward_view(shape, in_ptr<float>(args, 1)), kTile, args.workspace, pool);
    bind_epilogue(a.epilogue, args, operands);
    cpu::winograd_nhwc(a, static_cast<char*>(args.workspace) + packed, pool);
  };
  return bound;
}

ir::BoundKernel prepare_live_grouped(const ir::KernelInit& init) {
  const cpu::ConvShape shape = conv_shape(init.node);
  const int64_t packed = align_up(static_cast<int64_t>(cpu::packed_grouped_bytes(shape)));
  const size_t operands = init.node.in.size();
  ir::BoundKernel bound;
  bound.workspace_bytes = packed + static_cast<int64_t>(cpu::grouped_workspace_bytes(shape, init.threads));
  bound.run = [=, epilogue = epilogue_of(activation_of(init.node.attrs))](const ir::RunArgs& args) {
    cpu::GroupedArgs a{
        .shape = shape, .x = in_ptr<float>(args, 0), .y = out_ptr<float>(args, 0), .epilogue = epilogue};
    a.weights = cpu::pack_grouped(shape, in_ptr<float>(args, 1), args.workspace);
    bind_epilogue(a.epilogue, args, operands);
    cpu::grouped_nhwc(a, static_cast<char*>(args.workspace) + packed, cpu::pool_of(args.stream));
  };
  return bound;
}

/// A first layer that reads planes keeps the taps of each channel together, in their order in memory.
cpu::PackedConv pack_planes(const cpu::ConvShape& s, const float* weights, void* memory,
                            base::ThreadPool& pool) {
  const int64_t depth = s.c * s.kh * s.kw;
  const cpu::PackedMatrix packed = cpu::pack_b({weights, depth, s.oc, depth, true}, memory, pool);
  return {packed.data, 0, packed.isa, true};
}

ir::BoundKernel prepare_live_implicit(const ir::KernelInit& init) {
  const cpu::ConvShape shape = conv_shape(init.node);
  const cpu::ImageLayout layout = live_layout(init.node, shape);
  const bool planes = cpu::conv_packs_planes(shape, layout);
  const int64_t packed = align_up(static_cast<int64_t>(
      std::max(cpu::packed_view_bytes(cpu::forward_view(shape, nullptr)), cpu::packed_conv_bytes(shape))));
  const size_t operands = init.node.in.size();
  ir::BoundKernel bound;
  bound.workspace_bytes =
      packed + static_cast<int64_t>(cpu::conv2d_workspace_bytes(shape, layout, init.threads));
  bound.run = [=, epilogue = epilogue_of(activation_of(init.node.attrs))](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    cpu::ConvArgs c{.shape = shape,
                    .x = in_ptr<float>(args, 0),
                    .x_layout = layout,
                    .y = out_ptr<float>(args, 0),
                    .epilogue = epilogue};
    const float* weights = in_ptr<float>(args, 1);
    c.weights = planes ? pack_planes(shape, weights, args.workspace, pool)
                       : cpu::pack_view(cpu::forward_view(shape, weights), args.workspace, pool);
    bind_epilogue(c.epilogue, args, operands);
    cpu::conv2d_nhwc(c, static_cast<char*>(args.workspace) + packed, pool);
  };
  return bound;
}

}  // namespace

std::vector<ir::Kernel> conv_nhwc_live_kernels() {
  return faster(
      {{.name = "depthwise_lines_live",
        .refuse = refuse_live_depthwise_lines,
        .prepare = prepare_live_depthwise_lines},
       {.name = "depthwise_live", .refuse = refuse_live_depthwise, .prepare = prepare_live_depthwise},
       {.name = "winograd_live", .refuse = refuse_live_winograd, .prepare = prepare_live_winograd},
       {.name = "grouped_live", .refuse = refuse_live_grouped, .prepare = prepare_live_grouped},
       {.name = "implicit_gemm_live", .refuse = refuse_live_implicit, .prepare = prepare_live_implicit}},
      {});
}

}  // namespace trireme::ops
