// grid_sample, its gradients and affine_grid on NVIDIA GPUs.
#include "ops/image/grids_cuda.h"

#include <algorithm>

#include "backend/cuda/image/grid.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

/// The shape of sampling images like `x` at as many points as `y` has.
cuda::GridShape shape_of(const ir::NodeView& n, const Dims& x, const Dims& y) {
  cuda::GridShape s{.batch = x[0],
                    .channels = x[1],
                    .points = product(y, 2, y.size()),
                    .axes = static_cast<int>(x.size()) - 2};
  std::copy(x.begin() + 2, x.end(), s.in);
  const std::string mode = n.attrs.get_string("mode", "linear"),
                    pad = n.attrs.get_string("padding_mode", "zeros");
  s.mode = mode == "nearest"                      ? cuda::GridMode::nearest
           : mode == "cubic" || mode == "bicubic" ? cuda::GridMode::cubic
                                                  : cuda::GridMode::linear;
  base::require(s.mode != cuda::GridMode::linear || mode == "linear" || mode == "bilinear",
                "unknown grid_sample mode '", mode, "'");
  s.padding = pad == "border"       ? cuda::GridPadding::border
              : pad == "reflection" ? cuda::GridPadding::reflection
                                    : cuda::GridPadding::zeros;
  base::require(s.padding != cuda::GridPadding::zeros || pad == "zeros", "unknown padding_mode '", pad, "'");
  s.align_corners = n.attrs.get_int("align_corners", 0) != 0;
  return s;
}

/// Checks that all operands have one 16- or 32-bit type; x is an operand or the result.
ir::Refusal refuse_grid_on_gpu(const ir::NodeView& n, const Dims& x) {
  if (auto why = refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16})) return why;
  for (const tensor::TensorType& t : n.in) {
    if (t.dtype != n.in[0].dtype) return "image and grid are of different types";
  }
  if (x.size() > 5) return "more than three spatial axes";
  if (product(x, 2, x.size()) > INT32_MAX) return "a plane of 2^31 elements";
  return std::nullopt;
}

ir::Kernel sample_kernel() {
  ir::Kernel k{.name = "points"};
  k.refuse = [](const ir::NodeView& n) { return refuse_grid_on_gpu(n, n.in_dims(0)); };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::GridShape shape = shape_of(n, n.in_dims(0), n.out_dims(0));
    return ir::BoundKernel{[shape, dtype = n.in[0].dtype](const ir::RunArgs& args) {
      cuda::grid_sample({args.stream, dtype}, shape, args.in[0], args.in[1], args.out[0]);
    }};
  };
  return k;
}

/// The operands are dy and grid.
ir::Kernel grad_x_kernel() {
  ir::Kernel k{.name = "sorted"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (auto why = refuse_grid_on_gpu(n, n.out_dims(0))) return why;
    if (!cuda::fits_grid_sort(shape_of(n, n.out_dims(0), n.in_dims(0)))) return "2^31 taps or elements";
    return std::nullopt;
  };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::GridShape shape = shape_of(n, n.out_dims(0), n.in_dims(0));
    return ir::BoundKernel{
        [shape, dtype = n.in[0].dtype](const ir::RunArgs& args) {
          cuda::grid_sample_grad_x(
              {args.stream, dtype}, shape,
              {.dy = args.in[0], .grid = args.in[1], .to = args.out[0], .workspace = args.workspace});
        },
        cuda::grid_sample_grad_x_workspace_bytes(shape)};
  };
  return k;
}

/// The operands are dy, x and grid.
ir::Kernel grad_grid_kernel() {
  ir::Kernel k{.name = "points"};
  k.refuse = [](const ir::NodeView& n) { return refuse_grid_on_gpu(n, n.in_dims(1)); };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::GridShape shape = shape_of(n, n.in_dims(1), n.in_dims(0));
    return ir::BoundKernel{[shape, dtype = n.in[0].dtype](const ir::RunArgs& args) {
      cuda::grid_sample_grad_grid({args.stream, dtype}, shape,
                                  {.dy = args.in[0], .x = args.in[1], .grid = args.in[2], .to = args.out[0]});
    }};
  };
  return k;
}

ir::Kernel affine_kernel() {
  ir::Kernel k{.name = "points"};
  k.refuse = [](const ir::NodeView& n) { return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16}); };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const Dims y = n.out_dims(0);
    cuda::AffineGrid shape{.batch = y[0], .axes = static_cast<int>(y.size()) - 2};
    std::copy(y.begin() + 1, y.end() - 1, shape.out);
    shape.align_corners = n.attrs.get_int("align_corners", 0) != 0;
    return ir::BoundKernel{[shape, dtype = n.in[0].dtype](const ir::RunArgs& args) {
      cuda::affine_grid({args.stream, dtype}, shape, args.in[0], args.out[0]);
    }};
  };
  return k;
}

}  // namespace

std::vector<CudaKernels> grids_cuda_kernels() {
  return {{"grid_sample", {sample_kernel()}},
          {"grid_sample_grad_x", {grad_x_kernel()}},
          {"grid_sample_grad_grid", {grad_grid_kernel()}},
          {"affine_grid", {affine_kernel()}}};
}

}  // namespace trireme::ops
