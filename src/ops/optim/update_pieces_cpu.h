// The work of a multi-tensor update in pieces that depend only on extents, and what its kernels share.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/optim/update_rules.h"
#include "ops/kernel_forms.h"
#include "ops/optim/update_layout.h"

namespace trireme::ops {

/// Elements [begin, end) of one tensor.
struct Piece {
  size_t tensor;
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// Tensors cut into pieces of at most 16 Ki elements; tasks are runs of pieces of about that size together,
/// so that a hundred biases are one task.
class PiecePlan {
 public:
  PiecePlan() = default;
  explicit PiecePlan(const std::vector<int64_t>& elements);
  /// Tensor t is blocks[t] runs of equal length, each cut in pieces by its length alone: a rank that holds
  /// some of the blocks has the same pieces of them.
  PiecePlan(const std::vector<int64_t>& elements, const std::vector<int64_t>& blocks);

  const std::vector<Piece>& pieces() const { return pieces_; }
  /// Pieces of tensor t: [first(t), first(t + 1)).
  size_t first(size_t tensor) const { return first_[tensor]; }
  size_t tensors() const { return first_.size() - 1; }

  /// body(piece number, piece) for every piece, on the team; `body` writes nothing that another piece reads.
  template <class Body>
  void run(base::ThreadPool& pool, const Body& body) const {
    pool.run(static_cast<int64_t>(tasks_.size()) - 1, [&](int64_t task) {
      const size_t t = static_cast<size_t>(task);
      for (size_t i = tasks_[t]; i < tasks_[t + 1]; ++i) body(i, pieces_[i]);
    });
  }

 private:
  std::vector<Piece> pieces_;
  std::vector<size_t> first_{0};
  std::vector<size_t> tasks_{0};  // pieces [tasks_[t], tasks_[t + 1]) are task t
};

/// Sum of n doubles by halves: error grows with log n, order depends on n only.
double pairwise_sum(const double* x, size_t n);

/// A float scalar operand of type f32 or f64, or `absent`.
double scalar_of(const void* operand, tensor::DType type, double absent);

/// The scalar operands of one launch.
struct UpdateScalars {
  double lr, step, grad_scale;
  bool skip;
};

/// What every update kernel keeps of its node.
struct UpdatePlan {
  UpdateLayout layout;
  size_t groups = 0;
  tensor::DType lr_type = tensor::DType::f32, scale_type = tensor::DType::f32;
  double lr_scale = 1;
  PiecePlan pieces;                // over the parameters
  std::vector<int64_t> out_bytes;  // by result
  std::vector<tensor::Dims> dims;  // of the parameters
  std::vector<int> copy_result;    // by parameter: the result that is its rounded copy, or -1
  bool copies_are_bf16 = true;

  UpdatePlan(const ir::NodeView& node, UpdateLayout layout_of_op);
  UpdateScalars scalars(const ir::RunArgs& args) const;
  /// Result r is the operand it updates: copies where they are not the same memory.
  void keep(const ir::RunArgs& args, size_t result) const;
  void keep_all(const ir::RunArgs& args) const;
  size_t operand_of_result(size_t result) const;
  /// The rounded copy of a piece whose new content is there, still in a cache. Rounds as `cast` does.
  void round_piece(const ir::RunArgs& args, const Piece& p) const;

  /// Elements [begin, end) of a group with its states.
  template <class T>
  cpu::UpdateRun<T> run_of(const ir::RunArgs& args, const Piece& p) const {
    cpu::UpdateRun<T> run;
    run.n = p.size();
    run.param = in_ptr<T>(args, layout.param(p.tensor)) + p.begin;
    run.grad = in_ptr<T>(args, layout.grad(p.tensor)) + p.begin;
    run.param_out = out_ptr<T>(args, layout.param_result(p.tensor)) + p.begin;
    for (size_t s = 0; s < layout.states; ++s) {
      run.state[s] = in_ptr<T>(args, layout.state(p.tensor, s)) + p.begin;
      run.state_out[s] = out_ptr<T>(args, layout.state_result(p.tensor, s)) + p.begin;
    }
    return run;
  }
};

/// A kernel for f32 or f64 parameters from prepare(init, plan) per type: `make(T{}, init, plan)` returns the
/// bound kernel of an update that is not skipped, with UpdatePlan::round_piece() for every piece; skipping is
/// handled here.
template <class Make>
ir::Kernel update_kernel(std::string_view op, Make make) {
  const UpdateLayout layout = update_layout(op);
  const auto prepare = [layout, make](const ir::KernelInit& init) {
    auto plan = std::make_shared<const UpdatePlan>(init.node, layout);
    const size_t typed = kUpdateScalars;
    const tensor::DType type = init.node.in.size() > typed ? init.node.in[typed].dtype : tensor::DType::f32;
    ir::BoundKernel inner = visit_float(type, [&](auto zero) { return make(zero, init, plan); });
    auto run = [plan, update = std::move(inner.run)](const ir::RunArgs& args) {
      plan->scalars(args).skip ? plan->keep_all(args) : update(args);
    };
    return ir::BoundKernel{std::move(run), inner.workspace_bytes};
  };
  return {.name = "vector", .refuse = {}, .prepare = prepare};
}

}  // namespace trireme::ops
