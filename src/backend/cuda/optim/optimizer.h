// Launchers of multi-tensor updates, averages, norms of gradients and checks. All tensors are f32.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/device.h"

namespace trireme::cuda {

/// The 16-bit copy of a parameter that an update writes beside it: 2 bytes an element.
struct RoundedCopy {
  void* at = nullptr;   ///< or null: there is none
  bool is_bf16 = true;  ///< else f16
};

/// Addresses of one tensor; what an update does not have is null. Results may be the operands.
struct UpdateTensor {
  const float *param = nullptr, *grad = nullptr;
  const float* state[2] = {};
  float* param_out = nullptr;
  float* state_out[2] = {};
  int64_t n = 0;
  RoundedCopy copy = {};
};

/// Operands in device memory; `is_wide`: f64.
struct UpdateOperands {
  const void* lr = nullptr;
  bool lr_is_wide = false;
  const int64_t* step = nullptr;
  const void* grad_scale = nullptr;  ///< or null: 1
  bool grad_scale_is_wide = false;
  const uint8_t* skip = nullptr;  ///< or null
};

/// Rules of backend/cpu/optim/update_rules.h.
struct SgdForm {
  double lr_scale = 1, l2 = 0, momentum = 0, keep = 1;
  bool nesterov = false;
};
struct AdamForm {
  double lr_scale = 1, weight_decay = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  bool decoupled = true;
};

/// Workspace of each function that takes one but norms.
inline constexpr int64_t kUpdateWorkspaceBytes = 64;

struct UpdateCall {
  tensor::Stream& stream;
  std::span<const UpdateTensor> tensors;
  void* workspace = nullptr;
};
void sgd_update(const UpdateCall& call, const UpdateOperands& operands, const SgdForm& form);
void adam_update(const UpdateCall& call, const UpdateOperands& operands, const AdamForm& form);
/// param: the average, grad: the value; average = k average + (1 - k) value; with `step` k = min(keep, (1 +
/// step) / (10 + step)).
void average_update(const UpdateCall& call, const int64_t* step, const uint8_t* skip, double keep);

/// See tree_accumulate in ops/optim.
struct TreeAccumulateArgs {
  const int64_t* count = nullptr;
  const float* value = nullptr;
  std::span<const void* const> held;
  std::span<void* const> out;
  int64_t n = 0;
  int64_t* fault = nullptr;
  int64_t step = 0;
};
inline constexpr size_t kMostTreeLevels = 62;
void tree_accumulate(tensor::Stream& stream, const TreeAccumulateArgs& args);

/// *out = every element of every tensor (param, n) is finite.
int64_t all_finite_workspace_bytes(std::span<const int64_t> elements);
void all_finite(const UpdateCall& call, uint8_t* out);

/// A tensor [outer, blocks, inner]; its sums begin at `result`.
struct BlockedSquares {
  const float* x = nullptr;
  int64_t outer = 1, blocks = 1, inner = 1, result = 0;
};
int64_t block_squares_workspace_bytes(std::span<const BlockedSquares> tensors);
void block_squares(tensor::Stream& stream, std::span<const BlockedSquares> tensors, double* out,
                   void* workspace);

/// `count` sums of a tensor on each of `parts` ranks, `stride` apart.
struct SquaresOfRanks {
  const double* at = nullptr;
  int64_t first = 0, count = 0, parts = 1, stride = 0;
};
/// The root of the sum of all, or the sum. Workspace: 8 bytes a tensor.
void norm_of_squares(tensor::Stream& stream, std::span<const SquaresOfRanks> tensors, float* root,
                     double* sum, void* workspace);

/// Operands and results may be null but norm and coefficient.
struct ClipArgs {
  const float *norm = nullptr, *grad_scale = nullptr, *norm_limit = nullptr, *loss = nullptr,
              *loss_limit = nullptr;
  float* coefficient = nullptr;
  uint8_t* skip = nullptr;
  float* scaled = nullptr;
  double max_norm = 0, epsilon = 1e-6;
  bool skip_nonfinite = true;
};
void clip_coefficient(tensor::Stream& stream, const ClipArgs& args);

}  // namespace trireme::cuda
