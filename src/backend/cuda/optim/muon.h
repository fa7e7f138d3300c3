// Muon: momentum, and the Newton-Schulz iteration of matrices of equal extents as batched products.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/cuda/dense/gemm.h"
#include "backend/cuda/optim/optimizer.h"

namespace trireme::cuda {

struct MuonForm {
  double lr_scale = 1, momentum = 0.95, weight_decay = 0.1, epsilon = 1e-7;
  double a = 3.4445, b = -4.7750, c = 2.0315;  ///< of the quintic
  int64_t steps = 5;
  bool nesterov = true, bf16 = false, match_adamw = false;
};

/// The update of `count` matrices [rows, cols], none empty. Any thread may run it.
class MuonPlan {
 public:
  MuonPlan(const GemmPlace& place, const MuonForm& form, int64_t count, int64_t rows, int64_t cols);
  int64_t workspace_bytes() const { return bytes_; }
  /// tensors: count of rows * cols elements with one state; in stream order, can be recorded.
  void run(const UpdateCall& call, const UpdateOperands& operands) const;

 private:
  MuonForm form_;
  int64_t count_, rows_, cols_;
  int64_t chunks_at_, inverse_at_, x_at_, y_at_, gram_at_, gram2_at_, gemm_at_, bytes_;
  std::shared_ptr<const GemmPlan> gram_, square_, step_;
};

}  // namespace trireme::cuda
