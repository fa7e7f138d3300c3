// separable_conv_nhwc on CPU: one pass over bands of lines or slices of channels; weights are packed once.
#include "backend/cpu/conv/separable_nhwc.h"

#include "backend/cpu/device/cpu_stream.h"
#include "ops/conv/conv_shape_cpu.h"
#include "ops/conv/separable_conv.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

cpu::SeparableShape separable_shape(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(kSeparableX), w = n.in_dims(kSeparableDepthwise);
  cpu::SeparableShape shape;
  shape.depthwise = conv_shape(n.attrs, {x[0], x[1], x[2], w[0]}, w);
  shape.depthwise.groups = w[0];
  shape.in = x[3];
  shape.out = n.in_dims(kSeparableProject)[0];
  shape.expands = n.present(kSeparableExpand);
  return shape;
}

/// Refuses operands whose extents or types differ from those that the kernel assumes.
ir::Refusal refuse_operands(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(kSeparableX), w = n.in_dims(kSeparableDepthwise), y = n.out_dims(0);
  const int64_t c = w[0], out = y[3];
  tensor::Dims wanted[kSeparableOperands] = {x, {c, 1, w[2], w[3]}, {out, c, 1, 1}, {c}, {out}};
  wanted[kSeparableExpand] = {c, x[3], 1, 1};
  wanted[kSeparableExpandBias] = {c};
  wanted[kSeparableResidual] = y;
  for (size_t i = 0; i < kSeparableOperands; ++i) {
    if (!n.present(i)) continue;
    if (n.in[i].dtype != tensor::DType::f32 || !n.in[i].shape.is_static() || n.in_dims(i) != wanted[i])
      return base::concat("operand ", i, " is ", n.in[i].to_string(), ", not f32",
                          tensor::to_string(wanted[i]));
  }
  return std::nullopt;
}

ir::Refusal refuse_separable(const ir::NodeView& n) {
  if (n.in[kSeparableX].dtype != tensor::DType::f32)
    return base::concat("operand is ", tensor::name_of(n.in[kSeparableX].dtype));
  for (size_t i : {kSeparableDepthwise, kSeparableProject, kSeparableExpand}) {
    if (n.present(i) && n.value(i) == nullptr) return "weights are not constant";
  }
  if (const ir::Refusal reason = refuse_operands(n)) return reason;
  const cpu::ConvShape s = separable_shape(n).depthwise;
  if (const ir::Refusal reason = refuse_conv_shape(s, n.out_dims(0))) return reason;
  if (s.dilation_h != 1 || s.dilation_w != 1) return "kernel is dilated";
  if (s.kh < s.stride_h || s.kw < s.stride_w) return "strides pass over pixels";
  if (s.pad_top >= s.kh || s.pad_bottom >= s.kh) return "a window lies in the padding alone";
  return std::nullopt;
}

std::shared_ptr<const tensor::Tensor> pack_taps(const ir::KernelInit& init, const cpu::ConvShape& shape) {
  const tensor::Tensor& w = *init.node.value(kSeparableDepthwise);
  return pack_once<tensor::Tensor>(init.packs, w, "depthwise_f32", [&] {
    auto made = std::make_shared<tensor::Tensor>(tensor::Tensor::empty(tensor::DType::f32, w.dims()));
    cpu::pack_depthwise(shape, w.data<float>().data(), made->mutable_data<float>().data());
    return made;
  });
}

/// Packs pointwise weights [out, in, 1, 1] as the right operand of a product.
std::shared_ptr<const PackedWeight> pack_pointwise(const ir::KernelInit& init, size_t operand) {
  if (!init.node.present(operand)) return nullptr;
  const tensor::Tensor& w = *init.node.value(operand);
  const std::string format = base::concat("pointwise_f32 ", cpu::to_string(cpu::best_isa()));
  const auto slab = pack_slab(init.packs);
  return pack_once<PackedWeight>(init.packs, w, format, [&] {
    const int64_t n = w.dims()[0], k = w.dims()[1];
    const PackMemory memory(slab, cpu::packed_b_bytes(k, n));
    Packers packers(init, w);
    const cpu::PackedMatrix matrix =
        cpu::pack_b({w.data<float>().data(), k, n, k, true}, memory.data.get(), packers);
    return std::make_shared<PackedWeight>(PackedWeight{memory, matrix});
  });
}

ir::BoundKernel prepare_separable(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::SeparableShape shape = separable_shape(n);
  const auto taps = pack_taps(init, shape.depthwise);
  const auto expand = pack_pointwise(init, kSeparableExpand),
             project = pack_pointwise(init, kSeparableProject);
  ir::BoundKernel bound;
  bound.unread_inputs = 1u << kSeparableDepthwise | 1u << kSeparableProject | 1u << kSeparableExpand;
  bound.workspace_bytes = static_cast<int64_t>(cpu::separable_workspace_bytes(shape, init.threads));
  if (taps == nullptr || project == nullptr || (shape.expands && expand == nullptr)) return bound;
  cpu::SeparableArgs fixed{
      .shape = shape,
      .depthwise = taps->data<float>().data(),
      .project = project->matrix,
      .expand_end = epilogue_of(activation_of(stage_activation(n.attrs, "expand_"))),
      .depthwise_end = epilogue_of(activation_of(stage_activation(n.attrs, "depthwise_"))),
      .end = epilogue_of(activation_of(n.attrs))};
  if (expand) fixed.expand = expand->matrix;
  const size_t operands = n.in.size();
  bound.run = [=](const ir::RunArgs& args) {
    cpu::SeparableArgs a = fixed;
    a.x = in_ptr<float>(args, kSeparableX);
    a.y = out_ptr<float>(args, 0);
    a.expand_end.bias = opt_ptr<float>(args, kSeparableExpandBias, operands);
    a.depthwise_end.bias = opt_ptr<float>(args, kSeparableDepthwiseBias, operands);
    a.end.bias = opt_ptr<float>(args, kSeparableProjectBias, operands);
    a.end.residual = opt_ptr<float>(args, kSeparableResidual, operands);
    cpu::separable_nhwc(a, args.workspace, cpu::pool_of(args.stream));
  };
  // The kernel keeps the packed weights alive.
  bound.run = [run = std::move(bound.run), taps, expand, project](const ir::RunArgs& args) { run(args); };
  return bound;
}

}  // namespace

std::vector<ir::Kernel> separable_conv_nhwc_cpu_kernels() {
  return {{.name = "fused_walk", .refuse = refuse_separable, .prepare = prepare_separable}};
}

}  // namespace trireme::ops
