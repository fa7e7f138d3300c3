// conv_nhwc on CPU: depthwise rows, Winograd tiles (Lavin & Gray 2016), grouped vectors, dot products for few
// outputs, or an implicit product with packed weights; the epilogue is fused.
#include "backend/cpu/conv_forms/conv_choice.h"

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/conv/conv_pack.h"
#include "backend/cpu/conv/depthwise_nhwc.h"
#include "backend/cpu/conv/grouped_nhwc.h"
#include "backend/cpu/conv_forms/depthwise_lines.h"
#include "backend/cpu/conv_forms/narrow_nhwc.h"
#include "backend/cpu/conv_forms/winograd_groups.h"
#include "backend/cpu/conv_forms/winograd_lines.h"
#include "backend/cpu/conv/winograd_nhwc.h"
#include "ops/conv/conv_kernels_cpu.h"
#include "ops/conv/conv_shape_cpu.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/pack_memory.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

ir::Refusal refuse_packed(const ir::NodeView& n) {
  if (n.in[0].dtype != tensor::DType::f32) return base::concat("operand is ", tensor::name_of(n.in[0].dtype));
  if (n.value(1) == nullptr) return "weights are not constant";
  if (const ir::Refusal reason = refuse_empty(n)) return reason;
  if (const ir::Refusal reason = refuse_conv_axes(n)) return reason;
  const cpu::ConvShape s = conv_shape(n);
  if (const ir::Refusal reason = refuse_conv_operands(n, s)) return reason;
  return refuse_conv_shape(s, conv_result(n));
}

ir::Refusal refuse_depthwise(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_packed(n)) return reason;
  const cpu::ConvShape s = conv_shape(n);
  if (!cpu::conv_is_depthwise(s))
    return base::concat(s.groups, " groups of ", s.c, " channels: not depthwise");
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  return std::nullopt;
}

ir::Refusal refuse_depthwise_lines(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_depthwise(n)) return reason;
  const cpu::ConvShape s = conv_shape(n);
  if (!cpu::depthwise_lines_pays(s))
    return base::concat("kernel of ", s.kh, " x ", s.kw, " does not pay for copies of lines");
  return std::nullopt;
}

/// Looks at one image only: a choice that hung on the batch or the team would change bits with them.
ir::Refusal refuse_winograd(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_packed(n)) return reason;
  const cpu::ConvShape s = conv_shape(n);
  if (const ir::Refusal reason = refuse_not_winograd(s)) return reason;
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  if (!cpu::winograd_fits(s)) return "padding is above 2 dilations";
  if (!cpu::winograd_pays(s))
    return base::concat("output of ", s.out_h(), " x ", s.out_w(), " under dilation ", s.dilation_h,
                        " is too small, or ", s.oc, " outputs too few, to pay for the transforms");
  return std::nullopt;
}

ir::Refusal refuse_winograd_groups(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_packed(n)) return reason;
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  const cpu::ConvShape s = conv_shape(n);
  if (!cpu::winograd_groups_fits(s)) return "is no 3 x 3 convolution of stride 1 in groups";
  if (!cpu::winograd_groups_pays(s))
    return base::concat("groups of ", s.c / s.groups, " channels to ", s.oc / s.groups, " at ", s.out_h(),
                        " x ", s.out_w(), " are too small to pay for the transforms");
  return std::nullopt;
}

ir::Refusal refuse_winograd_lines(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_packed(n)) return reason;
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  const cpu::ConvShape s = conv_shape(n);
  if (!cpu::winograd_lines_fits(s))
    return "has no axis of stride 1 with three taps or more, or groups, or too many taps and channels";
  if (!cpu::winograd_lines_pays(s))
    return base::concat(s.c, " channels to ", s.oc, " at ", s.out_h(), " x ", s.out_w(),
                        " are too few to pay for the transforms");
  return std::nullopt;
}

ir::Refusal refuse_narrow(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_packed(n)) return reason;
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  const cpu::ConvShape s = conv_shape(n);
  if (!cpu::narrow_pays(s))
    return base::concat(s.c, " channels to ", s.oc, " in ", s.groups,
                        " groups: not a few outputs of one group");
  return std::nullopt;
}

ir::Refusal refuse_grouped(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse_packed(n)) return reason;
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  const cpu::ConvShape s = conv_shape(n);
  if (s.groups == 1) return "has one group";
  if (!cpu::grouped_pays(s))
    return base::concat("groups of ", s.c / s.groups, " channels to ", s.oc / s.groups,
                        " leave lanes empty or fill products");
  return std::nullopt;
}

struct ImplicitWeights {
  PackMemory memory;
  cpu::PackedConv conv;
};

struct GroupedWeights {
  PackMemory memory;
  cpu::PackedGrouped packed;
};

struct DepthwiseLinesWeights {
  PackMemory memory;
  cpu::PackedDepthwiseLines packed;
};

struct WinogradGroupsWeights {
  PackMemory memory;
  std::vector<cpu::PackedWinograd> packed;
};

struct WinogradLinesWeights {
  PackMemory memory;
  cpu::PackedWinogradLines packed;
};

struct NarrowWeights {
  PackMemory memory;
  const float* packed;
};

struct WinogradWeights {
  PackMemory memory;
  cpu::PackedWinograd packed;
};

ir::BoundKernel prepare_depthwise(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = conv_shape(n);
  const tensor::Tensor& w = *n.value(1);
  const auto packed = pack_once<tensor::Tensor>(init.packs, w, "depthwise_f32", [&] {
    auto made = std::make_shared<tensor::Tensor>(tensor::Tensor::empty(tensor::DType::f32, w.dims()));
    cpu::pack_depthwise(shape, w.data<float>().data(), made->mutable_data<float>().data());
    return made;
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  if (packed == nullptr) return bound;
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::DepthwiseArgs d{.shape = shape,
                         .x = in_ptr<float>(args, 0),
                         .weights = packed->data<float>().data(),
                         .y = out_ptr<float>(args, 0),
                         .epilogue = epilogue};
    bind_epilogue(d.epilogue, args, operands);
    cpu::depthwise_nhwc(d, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_depthwise_lines(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = conv_shape(n);
  const tensor::Tensor& w = *n.value(1);
  const auto slab = pack_slab(init.packs);
  const auto weights = pack_once<DepthwiseLinesWeights>(init.packs, w, "depthwise_lines_f32", [&] {
    const PackMemory memory(slab, cpu::packed_depthwise_lines_bytes(shape));
    const cpu::PackedDepthwiseLines packed =
        cpu::pack_depthwise_lines(shape, w.data<float>().data(), memory.data.get());
    return std::make_shared<DepthwiseLinesWeights>(DepthwiseLinesWeights{memory, packed});
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  bound.workspace_bytes = static_cast<int64_t>(cpu::depthwise_lines_workspace_bytes(shape, init.threads));
  if (weights == nullptr) return bound;
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::DepthwiseLinesArgs a{.shape = shape,
                              .x = in_ptr<float>(args, 0),
                              .weights = weights->packed,
                              .y = out_ptr<float>(args, 0),
                              .epilogue = epilogue};
    bind_epilogue(a.epilogue, args, operands);
    cpu::depthwise_lines_nhwc(a, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_winograd(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = conv_shape(n);
  const tensor::Tensor& w = *n.value(1);
  const cpu::WinogradTile tile = cpu::winograd_tile(shape);
  const std::string format = base::concat("winograd_f32 ", static_cast<int>(tile));
  const auto slab = pack_slab(init.packs);
  const auto weights = pack_once<WinogradWeights>(init.packs, w, format, [&] {
    const PackMemory memory(slab, cpu::packed_winograd_bytes(shape, tile));
    Packers packers(init, w);
    const cpu::PackedWinograd packed = cpu::transform_view(cpu::forward_view(shape, w.data<float>().data()),
                                                           tile, memory.data.get(), packers);
    return std::make_shared<WinogradWeights>(WinogradWeights{memory, packed});
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  bound.workspace_bytes = static_cast<int64_t>(cpu::winograd_workspace_bytes(shape, tile, init.threads));
  if (weights == nullptr) return bound;
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::WinogradArgs a{.shape = shape,
                        .x = in_ptr<float>(args, 0),
                        .weights = weights->packed,
                        .y = out_ptr<float>(args, 0),
                        .epilogue = epilogue};
    bind_epilogue(a.epilogue, args, operands);
    cpu::winograd_nhwc(a, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_winograd_groups(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = conv_shape(n);
  const tensor::Tensor& w = *n.value(1);
  const std::string format = base::concat("winograd_f32 g", shape.groups);
  const auto slab = pack_slab(init.packs);
  const auto weights = pack_once<WinogradGroupsWeights>(init.packs, w, format, [&] {
    const PackMemory memory(slab, cpu::packed_winograd_groups_bytes(shape));
    const auto packed = cpu::pack_winograd_groups(shape, w.data<float>().data(), memory.data.get());
    return std::make_shared<WinogradGroupsWeights>(WinogradGroupsWeights{memory, packed});
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  bound.workspace_bytes = static_cast<int64_t>(cpu::winograd_groups_workspace_bytes(shape, init.threads));
  if (weights == nullptr) return bound;
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::WinogradGroupsArgs a{.shape = shape,
                              .x = in_ptr<float>(args, 0),
                              .weights = weights->packed.data(),
                              .y = out_ptr<float>(args, 0),
                              .epilogue = epilogue};
    bind_epilogue(a.epilogue, args, operands);
    cpu::winograd_groups_nhwc(a, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_winograd_lines(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = conv_shape(n);
  const tensor::Tensor& w = *n.value(1);
  const auto slab = pack_slab(init.packs);
  // Strides decide which axis of the kernel is the line.
  const std::string format = base::concat("winograd_lines_f32 ", shape.stride_h == 1, shape.stride_w == 1);
  const auto weights = pack_once<WinogradLinesWeights>(init.packs, w, format, [&] {
    const PackMemory memory(slab, cpu::packed_winograd_lines_bytes(shape));
    Packers packers(init, w);
    const cpu::PackedWinogradLines packed =
        cpu::pack_winograd_lines(shape, w.data<float>().data(), memory.data.get(), packers);
    return std::make_shared<WinogradLinesWeights>(WinogradLinesWeights{memory, packed});
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  bound.workspace_bytes = static_cast<int64_t>(cpu::winograd_lines_workspace_bytes(shape, init.threads));
  if (weights == nullptr) return bound;
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::WinogradLinesArgs a{.shape = shape,
                             .x = in_ptr<float>(args, 0),
                             .weights = weights->packed,
                             .y = out_ptr<float>(args, 0),
                             .epilogue = epilogue};
    bind_epilogue(a.epilogue, args, operands);
    cpu::winograd_lines_nhwc(a, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_narrow(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = conv_shape(n);
  const tensor::Tensor& w = *n.value(1);
  const auto slab = pack_slab(init.packs);
  const auto weights = pack_once<NarrowWeights>(init.packs, w, "narrow_f32", [&] {
    const PackMemory memory(slab, cpu::packed_narrow_bytes(shape));
    const float* packed = cpu::pack_narrow(shape, w.data<float>().data(), memory.data.get());
    return std::make_shared<NarrowWeights>(NarrowWeights{memory, packed});
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  if (weights == nullptr) return bound;
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::NarrowArgs a{.shape = shape,
                      .x = in_ptr<float>(args, 0),
                      .weights = weights->packed,
                      .y = out_ptr<float>(args, 0),
                      .epilogue = epilogue};
    bind_epilogue(a.epilogue, args, operands);
    cpu::narrow_nhwc(a, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_grouped(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = conv_shape(n);
  const tensor::Tensor& w = *n.value(1);
  // Strides and dilation determine which taps are packed together.
  const std::string format =
      base::concat("grouped_f32 g", shape.groups, " s", shape.stride_w, " d", shape.dilation_w);
  const auto slab = pack_slab(init.packs);
  const auto weights = pack_once<GroupedWeights>(init.packs, w, format, [&] {
    const PackMemory memory(slab, cpu::packed_grouped_bytes(shape));
    const cpu::PackedGrouped packed = cpu::pack_grouped(shape, w.data<float>().data(), memory.data.get());
    return std::make_shared<GroupedWeights>(GroupedWeights{memory, packed});
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  bound.workspace_bytes = static_cast<int64_t>(cpu::grouped_workspace_bytes(shape, init.threads));
  if (weights == nullptr) return bound;
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::GroupedArgs a{.shape = shape,
                       .x = in_ptr<float>(args, 0),
                       .weights = weights->packed,
                       .y = out_ptr<float>(args, 0),
                       .epilogue = epilogue};
    bind_epilogue(a.epilogue, args, operands);
    cpu::grouped_nhwc(a, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_implicit(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = conv_shape(n);
  const tensor::Tensor& w = *n.value(1);
  const cpu::ImageLayout layout = conv_reads_nchw(n.attrs) ? cpu::ImageLayout::nchw : cpu::ImageLayout::nhwc;
  // Strides and dilations decide which form takes planes, so convolutions that share a weight may differ in
  // it.
  const std::string format = base::concat("conv_f32 g", shape.groups, conv_reads_nchw(n.attrs) ? " nchw" : "",
                                          cpu::conv_packs_planes(shape, layout) ? " planes" : "");
  const auto slab = pack_slab(init.packs);
  const auto packed = pack_once<ImplicitWeights>(init.packs, w, format, [&] {
    const PackMemory memory(slab, cpu::packed_conv_bytes(shape));
    Packers packers(init, w);
    const cpu::PackedConv conv =
        cpu::pack_conv({shape, w.data<float>().data(), layout}, memory.data.get(), packers);
    return std::make_shared<ImplicitWeights>(ImplicitWeights{memory, conv});
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  bound.workspace_bytes = static_cast<int64_t>(cpu::conv2d_workspace_bytes(shape, layout, init.threads));
  if (packed == nullptr) return bound;
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::ConvArgs c{.shape = shape,
                    .x = in_ptr<float>(args, 0),
                    .x_layout = layout,
                    .weights = packed->conv,
                    .y = out_ptr<float>(args, 0),
                    .epilogue = epilogue};
    bind_epilogue(c.epilogue, args, operands);
    cpu::conv2d_nhwc(c, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

}  // namespace

std::vector<ir::Kernel> conv_nhwc_cpu_kernels() {
  std::vector<ir::Kernel> all = {
      {.name = "depthwise_lines", .refuse = refuse_depthwise_lines, .prepare = prepare_depthwise_lines},
      {.name = "depthwise", .refuse = refuse_depthwise, .prepare = prepare_depthwise},
      {.name = "winograd", .refuse = refuse_winograd, .prepare = prepare_winograd},
      {.name = "winograd_groups", .refuse = refuse_winograd_groups, .prepare = prepare_winograd_groups},
      {.name = "winograd_lines", .refuse = refuse_winograd_lines, .prepare = prepare_winograd_lines},
      {.name = "narrow", .refuse = refuse_narrow, .prepare = prepare_narrow},
      {.name = "grouped", .refuse = refuse_grouped, .prepare = prepare_grouped},
      {.name = "implicit_gemm", .refuse = refuse_packed, .prepare = prepare_implicit}};
  for (auto& more : {conv_depth_kernels(), conv_nhwc_live_kernels()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace trireme::ops
