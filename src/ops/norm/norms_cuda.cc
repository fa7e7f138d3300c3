// Kernels of norms and their gradients on NVIDIA GPUs.
#include "backend/cuda/norm/norm.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/norm/planes.h"
#include "ops/norm/rounded.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

/// Requires x to be f32, f16 or bf16 and the operands of `vectors` to have all x's type or all f32.
ir::Refusal refuse_types(const ir::NodeView& node, size_t x, std::initializer_list<size_t> vectors) {
  if (auto why = refuse_dtype(node, x, {DType::f32, DType::f16, DType::bf16})) return why;
  DType type = node.in[x].dtype;
  bool is_first = true;
  for (size_t i : vectors) {
    if (!node.present(i)) continue;
    const DType given = node.in[i].dtype;
    if (given != node.in[x].dtype && given != DType::f32)
      return base::concat("operand ", i, " is ", name_of(given), " beside ", name_of(node.in[x].dtype));
    if (!is_first && given != type) return "scale and bias are of different types";
    type = given;
    is_first = false;
  }
  return std::nullopt;
}

ir::Refusal refuse_others(const ir::NodeView& node, size_t x, std::initializer_list<size_t> like_x) {
  for (size_t i : like_x) {
    if (node.present(i) && node.in[i].dtype != node.in[x].dtype)
      return base::concat("operand ", i, " is ", name_of(node.in[i].dtype));
  }
  return std::nullopt;
}

cuda::NormTypes types_of(const ir::NodeView& node, size_t x, size_t scale) {
  return {node.in[x].dtype, node.present(scale) ? node.in[scale].dtype : node.in[x].dtype};
}

/// Checks 16-bit tensors of norms with f32 rows: a result that is rounded, and a 16-bit dy.
ir::Refusal refuse_rounding(const ir::NodeView& node, size_t x, std::initializer_list<size_t> f32) {
  const DType rounded = rounded_type(node.attrs);
  const bool has_low_gradient = x == 1 && node.in[0].dtype != node.in[1].dtype;
  if (rounded == DType::f32 && !has_low_gradient) return std::nullopt;
  if (auto why = refuse_dtype(node, x, {DType::f32})) return why;
  for (size_t i : f32) {
    if (!node.present(i)) continue;
    if (auto why = refuse_dtype(node, i, {DType::f32})) return why;
  }
  if (!has_low_gradient) return std::nullopt;
  if (rounded == DType::f32) return refuse_dtype(node, 0, {DType::f16, DType::bf16});
  return refuse_dtype(node, 0, {rounded});
}

cuda::NormRounding rounding_of(const ir::NodeView& node, size_t x) {
  const bool has_low_gradient = x == 1 && node.in[0].dtype != node.in[1].dtype;
  return {has_low_gradient ? node.in[0].dtype : rounded_type(node.attrs), has_low_gradient};
}

/// The rows of a norm over the axes from `axis` on.
struct Rows {
  int64_t rows, n;
};
Rows rows_of(const ir::NodeView& node, size_t x) {
  const Dims dims = node.in_dims(x);
  const size_t axis = ir::normal_axis(node.attrs.get_int("axis", -1), dims.size());
  return {product(dims, 0, axis), product(dims, axis, dims.size())};
}

const void* operand(const ir::RunArgs& args, int i) { return i < 0 ? nullptr : args.in[i]; }
int at_or_none(const ir::NodeView& node, int i) { return node.present(static_cast<size_t>(i)) ? i : -1; }
void* result(const ir::RunArgs& args, size_t i, size_t count) { return i < count ? args.out[i] : nullptr; }

ir::Refusal refuse_row_norm(const ir::NodeView& node) {
  if (auto why = refuse_types(node, 0, {1, 2})) return why;
  if (auto why = refuse_rounding(node, 0, {1, 2})) return why;
  for (size_t i : {1, 2}) {
    if (node.present(i) && tensor::element_count(node.in_dims(i)) != rows_of(node, 0).n)
      return base::concat("operand ", i, " broadcasts over the normalised axes");
  }
  return std::nullopt;
}

ir::Kernel row_norm_kernel(bool rms) {
  auto prepare = [rms](const ir::KernelInit& init) {
    const ir::NodeView& node = init.node;
    const Rows rows = rows_of(node, 0);
    const cuda::RowNormArgs fixed{.types = types_of(node, 0, 1),
                                  .rounding = rounding_of(node, 0),
                                  .rows = rows.rows,
                                  .n = rows.n,
                                  .epsilon = static_cast<float>(node.attrs.get_float("epsilon", 1e-5)),
                                  .rms = rms};
    return ir::BoundKernel{
        [fixed, rms, bias = at_or_none(node, 2), results = node.out.size()](const ir::RunArgs& args) {
          cuda::RowNormArgs a = fixed;
          a.x = args.in[0];
          a.scale = args.in[1];
          a.bias = operand(args, bias);
          a.y = args.out[0];
          a.rounded = result(args, rms ? 1 : 3, results);
          if (!rms) a.mean = static_cast<float*>(result(args, 1, results));
          if (!rms) a.inv_std = static_cast<float*>(result(args, 2, results));
          cuda::row_norm(args.stream, a);
        }};
  };
  return {.name = "rows", .refuse = refuse_row_norm, .prepare = prepare, .may_overwrite = 1};
}

ir::Kernel row_norm_grad_kernel(bool rms) {
  auto refuse = [](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse_types(node, 1, {2})) return why;
    if (auto why = refuse_rounding(node, 1, {2})) return why;
    return refuse_others(node, 1, {3});
  };
  auto prepare = [rms](const ir::KernelInit& init) {
    const ir::NodeView& node = init.node;
    const Rows rows = rows_of(node, 1);
    const cuda::RowNormGradArgs fixed{.types = types_of(node, 1, 2),
                                      .rounding = rounding_of(node, 1),
                                      .rows = rows.rows,
                                      .n = rows.n,
                                      .epsilon = static_cast<float>(node.attrs.get_float("epsilon", 1e-5)),
                                      .rms = rms};
    auto run = [fixed, rms, scale = at_or_none(node, 2), add = at_or_none(node, 3),
                results = node.out.size()](const ir::RunArgs& args) {
      cuda::RowNormGradArgs a = fixed;
      a.dy = args.in[0];
      a.x = args.in[1];
      a.scale = operand(args, scale);
      a.add = operand(args, add);
      a.dx = args.out[0];
      a.dscale = result(args, 1, results);
      if (!rms) a.dbias = result(args, 2, results);
      a.rounded = result(args, rms ? 2 : 3, results);
      a.workspace = args.workspace;
      cuda::row_norm_grad(args.stream, a);
    };
    return ir::BoundKernel{run, cuda::row_norm_grad_workspace_bytes(rows.rows, rows.n)};
  };
  // dy and x are read again for the columns after dx was written, so only `add` may be overwritten.
  return {.name = "rows", .refuse = refuse, .prepare = prepare, .may_overwrite = 0b1000};
}

ir::Kernel group_norm_kernel(bool per_channel) {
  auto refuse = [](const ir::NodeView& node) -> ir::Refusal {
    if (node.in[0].shape.rank() < 2) return "no channel axis";
    return refuse_types(node, 0, {1, 2});
  };
  auto prepare = [per_channel](const ir::KernelInit& init) {
    const ir::NodeView& node = init.node;
    const Planes p = planes_of(node.in_dims(0));
    const int64_t groups = per_channel ? p.channels : node.attrs.need_int("num_groups");
    const cuda::GroupNormArgs fixed{.types = types_of(node, 0, 1),
                                    .rows = p.batch * groups,
                                    .n = groups == 0 ? 0 : p.channels / groups * p.points,
                                    .points = p.points,
                                    .groups = groups,
                                    .epsilon = static_cast<float>(node.attrs.get_float("epsilon", 1e-5))};
    return ir::BoundKernel{[fixed](const ir::RunArgs& args) {
      cuda::GroupNormArgs a = fixed;
      a.x = args.in[0];
      a.scale = args.in[1];
      a.bias = args.in[2];
      a.y = args.out[0];
      cuda::group_norm(args.stream, a);
    }};
  };
  return {.name = "rows", .refuse = refuse, .prepare = prepare, .may_overwrite = 1};
}

/// Batch norm in inference.
ir::Kernel batch_norm_kernel() {
  auto refuse = [](const ir::NodeView& node) -> ir::Refusal {
    if (node.attrs.get_int("training_mode", 0) != 0) return "training_mode takes the statistics of the batch";
    if (node.out_count > 1) return "running statistics are results of training";
    if (node.in[0].shape.rank() < 2) return "no channel axis";
    return refuse_types(node, 0, {1, 2, 3, 4});
  };
  auto prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& node = init.node;
    const Planes p = planes_of(node.in_dims(0));
    const cuda::ChannelNormArgs fixed{.types = types_of(node, 0, 1),
                                      .outer = p.batch,
                                      .channels = p.channels,
                                      .inner = p.points,
                                      .epsilon = static_cast<float>(node.attrs.get_float("epsilon", 1e-5))};
    return ir::BoundKernel{[fixed](const ir::RunArgs& args) {
      cuda::ChannelNormArgs a = fixed;
      a.x = args.in[0];
      a.scale = args.in[1];
      a.bias = args.in[2];
      a.mean = args.in[3];
      a.variance = args.in[4];
      a.y = args.out[0];
      cuda::channel_norm(args.stream, a);
    }};
  };
  return {.name = "channels", .refuse = refuse, .prepare = prepare, .may_overwrite = 1};
}

AxisLoops channel_loops(const ir::NodeView& node, size_t x) {
  const Dims dims = node.in_dims(x);
  return axis_loops(dims, ir::normal_axis(node.attrs.get_int("axis", 1), dims.size()));
}
bool has_relu(const ir::NodeView& node) { return node.attrs.get_string("activation", "none") == "relu"; }

ir::Kernel batch_norm_train_kernel() {
  auto refuse = [](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse_types(node, 0, {1, 2})) return why;
    if (tensor::element_count(node.in_dims(0)) == 0) return "an empty batch has no statistics";
    return refuse_others(node, 0, {3});
  };
  auto prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& node = init.node;
    const AxisLoops loops = channel_loops(node, 0);
    const cuda::BatchNormArgs fixed{.types = types_of(node, 0, 1),
                                    .outer = loops.outer,
                                    .channels = loops.n,
                                    .inner = loops.inner,
                                    .epsilon = node.attrs.get_float("epsilon", 1e-5),
                                    .relu = has_relu(node)};
    auto run = [fixed, residual = at_or_none(node, 3), results = node.out.size()](const ir::RunArgs& args) {
      cuda::BatchNormArgs a = fixed;
      a.x = args.in[0];
      a.scale = args.in[1];
      a.bias = args.in[2];
      a.residual = operand(args, residual);
      a.y = args.out[0];
      a.mean = static_cast<float*>(result(args, 1, results));
      a.inv_std = static_cast<float*>(result(args, 2, results));
      a.variance = static_cast<float*>(result(args, 3, results));
      a.workspace = args.workspace;
      cuda::batch_norm_train(args.stream, a);
    };
    return ir::BoundKernel{run, cuda::batch_norm_workspace_bytes(loops.outer, loops.n, loops.inner)};
  };
  return {.name = "channels", .refuse = refuse, .prepare = prepare, .may_overwrite = 0b1001};
}

ir::Kernel batch_norm_grad_kernel() {
  auto refuse = [](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse_types(node, 1, {2, 3})) return why;
    if (tensor::element_count(node.in_dims(1)) == 0) return "an empty batch has no statistics";
    for (size_t i : {4, 5}) {
      if (auto why = refuse_dtype(node, i, {DType::f32})) return why;
    }
    return refuse_others(node, 1, {0, 6, 7});
  };
  auto prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& node = init.node;
    const AxisLoops loops = channel_loops(node, 1);
    const cuda::BatchNormGradArgs fixed{.types = types_of(node, 1, 2),
                                        .outer = loops.outer,
                                        .channels = loops.n,
                                        .inner = loops.inner,
                                        .relu = has_relu(node)};
    auto run = [fixed, y = at_or_none(node, 6), more = at_or_none(node, 7),
                results = node.out.size()](const ir::RunArgs& args) {
      cuda::BatchNormGradArgs a = fixed;
      a.dy = args.in[0];
      a.x = args.in[1];
      a.scale = args.in[2];
      a.bias = args.in[3];
      a.mean = static_cast<const float*>(args.in[4]);
      a.inv_std = static_cast<const float*>(args.in[5]);
      a.y = operand(args, y);
      a.more = operand(args, more);
      a.dx = args.out[0];
      a.dscale = result(args, 1, results);
      a.dbias = result(args, 2, results);
      a.dresidual = result(args, 3, results);
      a.workspace = args.workspace;
      cuda::batch_norm_grad(args.stream, a);
    };
    return ir::BoundKernel{run, cuda::batch_norm_workspace_bytes(loops.outer, loops.n, loops.inner)};
  };
  return {.name = "channels", .refuse = refuse, .prepare = prepare, .may_overwrite = 0b11};
}

}  // namespace

std::vector<CudaKernels> norms_cuda_kernels() {
  return {{"layer_norm", {row_norm_kernel(false)}},
          {"rms_norm", {row_norm_kernel(true)}},
          {"layer_norm_grad", {row_norm_grad_kernel(false)}},
          {"rms_norm_grad", {row_norm_grad_kernel(true)}},
          {"group_norm", {group_norm_kernel(false)}},
          {"instance_norm", {group_norm_kernel(true)}},
          {"batch_norm", {batch_norm_kernel()}},
          {"batch_norm_train", {batch_norm_train_kernel()}},
          {"batch_norm_grad", {batch_norm_grad_kernel()}}};
}

}  // namespace trireme::ops
