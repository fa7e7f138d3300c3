// Ops that read or write at computed positions: what schema and kernel files share.
#pragma once

#include "ir/kernel.h"
#include "ops/grad.h"
#include "ops/index/index_access.h"

namespace trireme::ops {

/// How a scatter joins an update with what is there.
enum class ScatterMode : uint8_t { none, add, mul, max, min };
/// Reads the `reduction` attribute. Throws invalid_argument for an unknown one.
ScatterMode scatter_mode(const ir::Attrs& attrs);

std::vector<ir::Kernel> gather_cpu_kernels();
std::vector<ir::Kernel> gather_elements_cpu_kernels();
std::vector<ir::Kernel> gather_nd_cpu_kernels();
std::vector<ir::Kernel> scatter_elements_cpu_kernels();
std::vector<ir::Kernel> scatter_nd_cpu_kernels();
std::vector<ir::Kernel> compress_cpu_kernels();
std::vector<ir::Kernel> non_zero_cpu_kernels();
std::vector<ir::Kernel> gather_grad_cpu_kernels();

Gradients gather_rule(GradBuilder& g);
Gradients gather_elements_rule(GradBuilder& g);
Gradients gather_nd_rule(GradBuilder& g);
Gradients scatter_elements_rule(GradBuilder& g);
Gradients scatter_nd_rule(GradBuilder& g);
Gradients compress_rule(GradBuilder& g);

/// Of gather and its gradient: `first` and `extent` say which rows of the whole axis are at hand.
IndexReader::Rows rows_at_hand(const ir::Attrs& attrs, int64_t rows);

/// Of an embedding whose rows are split each rank looks up its own, and the results are partial sums; each
/// rank gathers the gradient of its own rows.
ir::CutRule gather_cut(const ir::NodeView& node);
ir::CutRule gather_grad_cut(const ir::NodeView& node);
void localise_gather(ir::LocalNode& node);
void localise_gather_grad(ir::LocalNode& node);

/// Number of rows compress keeps, non-zeros of x. Need known values.
int64_t kept_count(const tensor::Tensor& condition);
int64_t non_zero_count(const tensor::Tensor& x);

}  // namespace trireme::ops
