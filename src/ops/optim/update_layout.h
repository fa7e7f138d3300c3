// How the operands of a multi-tensor update stand: four scalars, then one group per parameter.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "ir/kernel.h"
#include "ir/updates.h"

namespace trireme::ops {

/// An update node reads (lr, step, grad_scale, skip, group, group, ...) and a group is (param, grad, states
/// ...); its results are, for each group, the new (param, states ...), each in place.
/// With attribute `copies` (numbers of groups, ascending) the node rounds the new parameters of these to the
/// type `copy_type` as well: behind everything else one operand for each, the state that holds it or absent,
/// and one result for each. lr f32|f64[]; step i64[]: 1 for the first executed update; grad_scale f32|f64[],
/// may be absent: 1; skip bool[], may be absent: when true nothing changes.
enum UpdateScalar : size_t { kUpdateLr, kUpdateStep, kUpdateGradScale, kUpdateSkip, kUpdateScalars };

/// Sizes of a group, by op. An op whose step is scaled by norms may have one operand more at its end: sums of
/// squares that trust_squares made on the ranks that hold parts of the parameters.
struct UpdateLayout {
  size_t states = 0;
  bool takes_squares = false;
  bool is_elementwise = false;                    ///< an element's step looks at that element alone
  size_t operands() const { return states + 2; }  ///< of a group
  size_t results() const { return states + 1; }   ///< of a group
  size_t groups(size_t node_operands) const { return (node_operands - kUpdateScalars) / operands(); }
  /// True if the operand beyond the groups is there.
  bool has_squares(size_t node_operands) const {
    return takes_squares && (node_operands - kUpdateScalars) % operands() == 1;
  }
  size_t param(size_t group) const { return kUpdateScalars + group * operands(); }
  size_t grad(size_t group) const { return param(group) + 1; }
  size_t state(size_t group, size_t s) const { return param(group) + 2 + s; }
  size_t param_result(size_t group) const { return group * results(); }
  size_t state_result(size_t group, size_t s) const { return param_result(group) + 1 + s; }
};

/// Operands of a node without those that are copies: what UpdateLayout counts.
inline size_t group_operands(const ir::Attrs& attrs, size_t operands) {
  return operands - attrs.get_ints(ir::kCopiesAttr).size();
}

/// Rounded copies of parameters that a node writes.
struct UpdateCopies {
  std::vector<int64_t> groups;  ///< that have one
  size_t first_operand = 0, first_result = 0;
  bool is_bf16 = true;  ///< else f16
  UpdateCopies(const ir::Attrs& attrs, const UpdateLayout& layout, size_t operands)
      : groups(attrs.get_ints(ir::kCopiesAttr)),
        first_operand(group_operands(attrs, operands)),
        first_result(layout.groups(first_operand) * layout.results()),
        is_bf16(attrs.get_string("copy_type", "bf16") == "bf16") {}
};

/// Whether an op updates groups that stand so; others that write states have operands of their own.
bool is_group_update(std::string_view name);

/// The update op `name`: how many states a parameter has. Throws internal for another op.
UpdateLayout update_layout(std::string_view name);

std::vector<ir::Kernel> sgd_update_cpu_kernels();
std::vector<ir::Kernel> momentum_update_cpu_kernels();
std::vector<ir::Kernel> adam_update_cpu_kernels();
std::vector<ir::Kernel> lamb_update_cpu_kernels();
std::vector<ir::Kernel> lars_update_cpu_kernels();
std::vector<ir::Kernel> trust_squares_cpu_kernels();
std::vector<ir::Kernel> adafactor_update_cpu_kernels();
std::vector<ir::Kernel> adafactor_vector_update_cpu_kernels();
std::vector<ir::Kernel> muon_update_cpu_kernels();
std::vector<ir::Kernel> ema_weights_cpu_kernels();
std::vector<ir::Kernel> ema_update_cpu_kernels();
std::vector<ir::Kernel> tree_accumulate_cpu_kernels();
std::vector<ir::Kernel> block_squares_cpu_kernels();
std::vector<ir::Kernel> norm_of_squares_cpu_kernels();
std::vector<ir::Kernel> all_finite_cpu_kernels();
std::vector<ir::Kernel> clip_coefficient_cpu_kernels();

}  // namespace trireme::ops
