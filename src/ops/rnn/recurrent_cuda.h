// How a recurrent layer runs on a device: its products and buffers, shared by the layer and its way back.
#pragma once

#include <array>
#include <memory>

#include "backend/cuda/dense/gemm.h"
#include "backend/cuda/rnn/recurrent.h"
#include "ir/kernel.h"
#include "ops/rnn/recurrent_plan.h"

namespace trireme::ops {

/// Address of a part of the workspace at its offset.
inline std::byte* room_at(const ir::RunArgs& args, int64_t offset) {
  return static_cast<std::byte*>(args.workspace) + offset;
}

/// The operands of a launch, null where a node has none.
using RecurrentOperands = std::array<const void*, kRecurrentIns>;
RecurrentOperands recurrent_operands(const ir::RunArgs& args, size_t count);

cuda::RecurrentShape recurrent_shape(const RecurrentPlan& plan);

/// Parts of a workspace, one after another.
class RecurrentRoom {
 public:
  /// The offset of a part.
  int64_t take(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

/// One matrix product of a run.
struct RecurrentProduct {
  std::shared_ptr<const cuda::GemmPlan> plan;
  void run(const ir::RunArgs& args, const cuda::GemmPointers& pointers, int64_t workspace) const {
    plan->run(args.stream, pointers, static_cast<std::byte*>(args.workspace) + workspace);
  }
};

/// The layer through time: the products of all inputs at once, then step by step.
class RecurrentForward {
 public:
  RecurrentForward(const ir::KernelInit& init, const RecurrentPlan& plan, RecurrentRoom& room);

  struct Results {
    void *y = nullptr, *h = nullptr, *c = nullptr;
  };
  /// `gemm`: offset of the products' own room. With a tape `pre` keeps the arguments of the gates.
  void run(const ir::RunArgs& args, const RecurrentOperands& in, const Results& out,
           const cuda::RecurrentTape& tape) const;

  const cuda::RecurrentShape& shape() const { return shape_; }
  tensor::DType dtype() const { return dtype_; }
  int64_t pre() const { return pre_; }  ///< offset, [places, directions, rows]
  void set_gemm_room(int64_t offset) { gemm_ = offset; }
  int64_t gemm_bytes() const { return gemm_bytes_; }
  /// The two phases of a step of gru whose reset gate comes before the product.
  bool has_two_phases() const { return shape_.gates == 3 && !shape_.linear_before_reset; }

 private:
  struct Buffers;
  void step(const ir::RunArgs& args, const RecurrentOperands& in, cuda::RecurrentStep s) const;

  cuda::RecurrentShape shape_;
  tensor::DType dtype_;
  RecurrentProduct inputs_;
  std::array<RecurrentProduct, 2> recurrent_;  ///< of each phase; none where few sequences run
  int64_t pre_ = 0, h_[2] = {0, 0}, c_ = 0, reset_h_ = 0, product_ = 0, gemm_ = 0, gemm_bytes_ = 0;
};

/// Adds a product to those that share one room; returns it.
RecurrentProduct recurrent_product(const ir::KernelInit& init, const cuda::GemmShape& shape,
                                   int64_t& gemm_bytes);

/// The gradient's run, with the forward pass that it repeats.
ir::BoundKernel bind_recurrent_grad(const ir::KernelInit& init, size_t gates);

}  // namespace trireme::ops
