// Region pooling on NVIDIA GPUs.
#include "backend/cuda/image/roi.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

cuda::RoiShape roi_shape_of(const ir::NodeView& n, const Dims& y) {
  const Dims x = n.in_dims(0);
  cuda::RoiShape s{.batch = x[0],
                   .channels = x[1],
                   .height = x[2],
                   .width = x[3],
                   .regions = y[0],
                   .out_h = y[2],
                   .out_w = y[3],
                   .scale = n.attrs.get_float("spatial_scale", 1),
                   .sampling = n.attrs.get_int("sampling_ratio", 0)};
  base::require(s.sampling >= 0 && s.sampling <= 4096, "sampling_ratio ", s.sampling,
                " is outside [0, 4096]");
  s.half_pixel = n.attrs.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  s.maximum = n.attrs.get_string("mode", "avg") == "max";
  return s;
}

ir::Refusal refuse_rois(const ir::NodeView& n) {
  if (auto why = refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16})) return why;
  if (n.in[1].dtype != n.in[0].dtype) return "regions are of another type";
  if (tensor::element_count(n.in_dims(0)) == 0) return "there is no image";
  return std::nullopt;
}

ir::Kernel align_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    base::require(init.node.in_dims(1)[1] == 4, "roi_align regions have 4 columns, got ",
                  init.node.in_dims(1)[1]);
    const cuda::RoiShape shape = roi_shape_of(init.node, init.node.out_dims(0));
    return ir::BoundKernel{[shape, dtype = init.node.in[0].dtype](const ir::RunArgs& args) {
      cuda::roi_align(
          {args.stream, dtype}, shape,
          {.x = args.in[0], .regions = args.in[1], .images = in_ptr<int64_t>(args, 2), .to = args.out[0]});
    }};
  };
  return {.name = "cells", .refuse = refuse_rois, .prepare = prepare};
}

/// The operands are x, regions, images, dy.
ir::Kernel align_grad_kernel() {
  auto refuse_maxima = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.attrs.get_string("mode", "avg") == "max") return "the largest sample of a cell is not kept";
    return refuse_rois(n);
  };
  auto prepare = [](const ir::KernelInit& init) {
    const cuda::RoiShape shape = roi_shape_of(init.node, init.node.in_dims(3));
    return ir::BoundKernel{[shape, dtype = init.node.in[0].dtype](const ir::RunArgs& args) {
      cuda::roi_align_grad(
          {args.stream, dtype}, shape,
          {.regions = args.in[1], .images = in_ptr<int64_t>(args, 2), .dy = args.in[3], .to = args.out[0]});
    }};
  };
  return {.name = "elements", .refuse = refuse_maxima, .prepare = prepare};
}

ir::Kernel max_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    base::require(init.node.in_dims(1)[1] == 5, "max_roi_pool regions have 5 columns, got ",
                  init.node.in_dims(1)[1]);
    const cuda::RoiShape shape = roi_shape_of(init.node, init.node.out_dims(0));
    return ir::BoundKernel{[shape, dtype = init.node.in[0].dtype](const ir::RunArgs& args) {
      cuda::max_roi_pool({args.stream, dtype}, shape,
                         {.x = args.in[0], .regions = args.in[1], .to = args.out[0]});
    }};
  };
  return {.name = "cells", .refuse = refuse_rois, .prepare = prepare};
}

}  // namespace

std::vector<CudaKernels> rois_cuda_kernels() {
  return {{"roi_align", {align_kernel()}},
          {"roi_align_grad", {align_grad_kernel()}},
          {"max_roi_pool", {max_kernel()}}};
}

}  // namespace trireme::ops
