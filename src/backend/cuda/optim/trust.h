// Launchers of updates whose step is scaled by norms of parameters. All tensors are f32.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/optim/optimizer.h"

namespace trireme::cuda {

struct LambForm {
  double lr_scale = 1, beta1 = 0.9, take1 = 0.1, beta2 = 0.999, epsilon = 1e-6, weight_decay = 0;
  bool adapt = true;
};
struct LarsForm {
  double lr_scale = 1, momentum = 0.9, weight_decay = 0, eta = 0.001, epsilon = 1e-8;
  bool adapt = true;
};
struct FactoredForm {
  double lr_scale = 1, beta2_decay = -0.8, epsilon1 = 0, epsilon2 = 1e-3, clip_threshold = 1,
         weight_decay = 0;
};

/// How parameters are cut: each in blocks[i] runs of its n[i] elements, whose sums of squares ranks exchange.
struct TrustCut {
  std::span<const int64_t> elements, blocks;
};
int64_t trust_workspace_bytes(const TrustCut& cut);

struct TrustCall {
  UpdateCall update;
  std::span<const int64_t> blocks;  ///< by tensor
  const double* squares = nullptr;  ///< [parts, 2, blocks of all] of all ranks, or null: this rank has all
  int64_t parts = 1;
};
void lamb_update(const TrustCall& call, const UpdateOperands& operands, const LambForm& form);
void lars_update(const TrustCall& call, const UpdateOperands& operands, const LarsForm& form);
/// Adafactor of parameters that are no matrices: one block each.
void factored_vector_update(const TrustCall& call, const UpdateOperands& operands, const FactoredForm& form);

/// out [2, blocks of all]: what the updates above compare, of the blocks this rank holds. Nothing else is
/// written: results in the tensors are null.
void lamb_squares(const TrustCall& call, const UpdateOperands& operands, const LambForm& form, double* out);
void lars_squares(const TrustCall& call, const UpdateOperands& operands, const LarsForm& form, double* out);

/// A parameter [matrices, rows, cols]. state[0] [matrices, rows] and state[1] [matrices, cols] are running
/// means of squares of its rows and columns.
struct FactoredTensor {
  UpdateTensor at;
  int64_t matrices = 1, rows = 1, cols = 1;
};
int64_t factored_workspace_bytes(std::span<const FactoredTensor> tensors);
void factored_update(tensor::Stream& stream, std::span<const FactoredTensor> tensors,
                     const UpdateOperands& operands, const FactoredForm& form, void* workspace);

}  // namespace trireme::cuda
