// Ops that make tensors from shapes and numbers, and the padding op: shared between schema and kernel files.
#pragma once

#include "ir/kernel.h"
#include "ops/grad.h"
#include "ops/shape/shape_rules.h"

namespace trireme::ops {

std::vector<ir::Kernel> shape_cpu_kernels();
std::vector<ir::Kernel> size_cpu_kernels();
std::vector<ir::Kernel> constant_of_shape_cpu_kernels();
std::vector<ir::Kernel> range_cpu_kernels();
std::vector<ir::Kernel> eye_like_cpu_kernels();
std::vector<ir::Kernel> trilu_cpu_kernels();
std::vector<ir::Kernel> one_hot_cpu_kernels();
std::vector<ir::Kernel> pad_cpu_kernels();
std::vector<ir::Kernel> center_crop_pad_cpu_kernels();
std::vector<ir::Kernel> reverse_sequence_cpu_kernels();
std::vector<ir::Kernel> col2im_cpu_kernels();
std::vector<ir::Kernel> pad_grad_cpu_kernels();
std::vector<ir::Kernel> im2col_cpu_kernels();

Gradients trilu_rule(GradBuilder& g);
Gradients pad_rule(GradBuilder& g);
Gradients center_crop_pad_rule(GradBuilder& g);
Gradients reverse_sequence_rule(GradBuilder& g);
Gradients col2im_rule(GradBuilder& g);

/// First and one-past-last dimension that `shape` returns.
std::pair<size_t, size_t> shape_range(const ir::NodeView& node);
/// Elements before and after each dimension of x; negative ones crop. Needs known pads.
struct Pads {
  std::vector<int64_t> before, after;
};
Pads pads_of(const ir::NodeView& node);
/// Positions of the block along each image dimension of col2im and im2col. Needs known operands 1 and 2.
std::vector<int64_t> window_positions(const ir::NodeView& node);
/// Elements range() gives.
int64_t range_count(const tensor::Tensor& start, const tensor::Tensor& limit, const tensor::Tensor& delta);
/// Extents center_crop_pad aims at, one for each dimension of x (its own where untouched).
std::vector<int64_t> crop_targets(const ir::NodeView& node, const tensor::Dims& x);

}  // namespace trireme::ops
