// Kernels of lamb_update (You et al. 2020), lars_update (You et al. 2017) and trust_squares on CPU: each
// parameter's step is scaled by a ratio of norms.
#include <algorithm>
#include <cmath>

#include "ops/optim/norm_blocks.h"
#include "ops/optim/update_pieces_cpu.h"

namespace trireme::ops {
namespace {

using Plan = std::shared_ptr<const UpdatePlan>;

/// A node's parameters are cut into blocks along their first dimension; ranks exchange the blocks' sums of
/// squares.
struct TrustPlan {
  Plan update;
  std::vector<int64_t> blocks;     // blocks per parameter on this rank
  size_t blocks_before_ranks = 0;  // blocks of all parameters: one rank's share of each half of the squares
  int64_t parts = 1;
  bool has_squares = false;
  PiecePlan pieces;

  TrustPlan(const ir::NodeView& node, const Plan& plan)
      : update(plan), blocks(node.attrs.get_ints("blocks")) {
    std::vector<int64_t> elements;
    const bool is_told = !blocks.empty();
    for (const tensor::Dims& d : plan->dims) {
      elements.push_back(tensor::element_count(d));
      const NormBlocks whole = norm_blocks(d);
      if (!is_told) blocks.push_back(whole.dim == 0 ? whole.blocks : 1);
    }
    for (int64_t b : blocks) blocks_before_ranks += static_cast<size_t>(b);
    parts = node.attrs.get_int("parts", 1);
    has_squares = plan->layout.has_squares(group_operands(node.attrs, node.in.size()));
    pieces = PiecePlan(elements, blocks);
  }

  /// Sums the pieces of each block of parameter `tensor` and writes the sums to `out`.
  void block_sums(const double* by_piece, size_t tensor, double* out) const {
    const auto count = static_cast<size_t>(blocks[tensor]);
    const size_t first = pieces.first(tensor), each = (pieces.first(tensor + 1) - first) / count;
    for (size_t b = 0; b < count; ++b) out[b] = pairwise_sum(by_piece + first + b * each, each);
  }
};
using SharedTrust = std::shared_ptr<const TrustPlan>;

/// The workspace of one launch: two sums of squares per piece, room for the blocks of a parameter, and the
/// rate of each parameter.
struct TrustWorkspace {
  double *first, *second;  // [pieces]
  double* blocks;          // [most blocks of a parameter on all ranks]
  double* rate;            // [parameters]
  TrustWorkspace(const TrustPlan& plan, void* memory)
      : first(static_cast<double*>(memory)),
        second(first + plan.pieces.pieces().size()),
        blocks(second + plan.pieces.pieces().size()),
        rate(blocks + room(plan)) {}
  static size_t room(const TrustPlan& plan) {
    return plan.blocks_before_ranks * static_cast<size_t>(plan.parts);
  }
  static int64_t bytes(const TrustPlan& plan) {
    const size_t doubles = 2 * plan.pieces.pieces().size() + room(plan) + plan.update->groups;
    return static_cast<int64_t>(sizeof(double) * doubles);
  }
};

/// Norm of one parameter (`half` 0) or of its step (`half` 1), added in the order of blocks by halves; over
/// all ranks if the launch has their sums.
double norm_of(const TrustPlan& plan, const ir::RunArgs& args, const TrustWorkspace& work, size_t tensor,
               size_t half) {
  const auto count = static_cast<size_t>(plan.blocks[tensor]);
  if (!plan.has_squares) {
    plan.block_sums(half == 0 ? work.first : work.second, tensor, work.blocks);
    return std::sqrt(pairwise_sum(work.blocks, count));
  }
  const double* squares =
      in_ptr<double>(args, kUpdateScalars + plan.update->groups * plan.update->layout.operands());
  size_t before = 0;
  for (size_t t = 0; t < tensor; ++t) before += static_cast<size_t>(plan.blocks[t]);
  for (size_t r = 0; r < static_cast<size_t>(plan.parts); ++r) {
    const double* from = squares + (2 * r + half) * plan.blocks_before_ranks + before;
    std::copy_n(from, count, work.blocks + r * count);
  }
  return std::sqrt(pairwise_sum(work.blocks, count * static_cast<size_t>(plan.parts)));
}

cpu::LambRule lamb_rule(const ir::Attrs& attrs) {
  const double beta1 = attrs.get_float("beta1", 0.9);
  return {.beta1 = beta1,
          .take1 = attrs.get_int("grad_averaging", 1) != 0 ? 1 - beta1 : 1,
          .beta2 = attrs.get_float("beta2", 0.999),
          .eps = attrs.get_float("epsilon", 1e-6),
          .weight_decay = attrs.get_float("weight_decay", 0)};
}

cpu::LambRule at_step(cpu::LambRule rule, const UpdateScalars& s) {
  rule.grad_scale = s.grad_scale;
  rule.inverse = 1 / (1 - std::pow(rule.beta1, s.step));
  rule.root = 1 / std::sqrt(1 - std::pow(rule.beta2, s.step));
  return rule;
}

/// Two passes: moments and both norms, then the step. Both compute the direction, because storing it would
/// move as many bytes and need memory as large as the parameters.
template <class T>
ir::BoundKernel prepare_lamb(const ir::KernelInit& init, const Plan& update) {
  const cpu::LambRule fixed = lamb_rule(init.node.attrs);
  const bool adapt = init.node.attrs.get_int("adapt", 1) != 0;
  const auto plan = std::make_shared<const TrustPlan>(init.node, update);
  auto run = [=](const ir::RunArgs& args) {
    const UpdateScalars s = update->scalars(args);
    const TrustWorkspace work(*plan, args.workspace);
    const cpu::LambRule rule = at_step(fixed, s);
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    plan->pieces.run(pool, [&](size_t i, const Piece& p) {
      const cpu::RunNorms norms = cpu::lamb_moments<T>(rule, update->template run_of<T>(args, p));
      work.first[i] = norms.param;
      work.second[i] = norms.update;
    });
    for (size_t t = 0; t < update->groups; ++t) {
      work.rate[t] = s.lr;
      if (!adapt) continue;
      const double param = norm_of(*plan, args, work, t, 0), step = norm_of(*plan, args, work, t, 1);
      if (param != 0 && step != 0) work.rate[t] = s.lr * (param / step);
    }
    plan->pieces.run(pool, [&](size_t, const Piece& p) {
      cpu::lamb_apply<T>(rule, work.rate[p.tensor], update->template run_of<T>(args, p));
      update->round_piece(args, p);
    });
  };
  return {std::move(run), TrustWorkspace::bytes(*plan)};
}

/// Sums of squares of a parameter's and of its gradient's pieces.
template <class T>
void lars_squares(const TrustPlan& plan, const ir::RunArgs& args, const TrustWorkspace& work) {
  plan.pieces.run(cpu::pool_of(args.stream), [&](size_t i, const Piece& p) {
    const UpdateLayout& layout = plan.update->layout;
    work.first[i] = cpu::sum_squares(in_ptr<T>(args, layout.param(p.tensor)) + p.begin, p.size());
    work.second[i] = cpu::sum_squares(in_ptr<T>(args, layout.grad(p.tensor)) + p.begin, p.size());
  });
}

/// First the norms of parameter and gradient, which only reads, then one pass of momentum. The rate is part
/// of the momentum, so a new lr applies only to what is added from then on.
template <class T>
ir::BoundKernel prepare_lars(const ir::KernelInit& init, const Plan& update) {
  const ir::Attrs& attrs = init.node.attrs;
  const bool adapt = attrs.get_int("adapt", 1) != 0;
  const double eta = attrs.get_float("eta", 0.001), eps = attrs.get_float("epsilon", 1e-8);
  const double decay = attrs.get_float("weight_decay", 0);
  const cpu::LarsRule fixed{.momentum = attrs.get_float("momentum", 0.9), .weight_decay = decay};
  const auto plan = std::make_shared<const TrustPlan>(init.node, update);
  auto run = [=](const ir::RunArgs& args) {
    const UpdateScalars s = update->scalars(args);
    const TrustWorkspace work(*plan, args.workspace);
    if (adapt && !plan->has_squares) lars_squares<T>(*plan, args, work);
    for (size_t t = 0; t < update->groups; ++t) {
      work.rate[t] = s.lr;
      if (!adapt) continue;
      const double param = norm_of(*plan, args, work, t, 0);
      const double grad = norm_of(*plan, args, work, t, 1) * std::abs(s.grad_scale);
      if (param != 0 && grad != 0) work.rate[t] *= eta * param / (grad + decay * param + eps);
    }
    plan->pieces.run(cpu::pool_of(args.stream), [&](size_t, const Piece& p) {
      cpu::LarsRule rule = fixed;
      rule.grad_scale = s.grad_scale;
      rule.rate = work.rate[p.tensor];
      cpu::lars_run<T>(rule, update->template run_of<T>(args, p));
      update->round_piece(args, p);
    });
  };
  return {std::move(run), TrustWorkspace::bytes(*plan)};
}

/// The norms that lamb_moments would return, without storing moments: these stay in L1, in the same tiles as
/// there, so that the sums have the same bits.
template <class T>
cpu::RunNorms lamb_norms(const cpu::LambRule& rule, const cpu::UpdateRun<T>& run) {
  constexpr int64_t kTile = 1024;
  T first[kTile], second[kTile];
  cpu::RunNorms sum;
  for (int64_t at = 0; at < run.n; at += kTile) {
    const cpu::UpdateRun<T> tile{run.param + at, run.grad + at,   {run.state[0] + at, run.state[1] + at},
                                 nullptr,        {first, second}, std::min(kTile, run.n - at)};
    const cpu::RunNorms norms = cpu::lamb_moments<T>(rule, tile);
    sum.param += norms.param;
    sum.update += norms.update;
  }
  return sum;
}

/// The operands of one piece; nothing is written.
template <class T>
cpu::UpdateRun<T> read_only(const UpdateLayout& layout, const ir::RunArgs& args, const Piece& p) {
  cpu::UpdateRun<T> run;
  run.n = p.size();
  run.param = in_ptr<T>(args, layout.param(p.tensor)) + p.begin;
  run.grad = in_ptr<T>(args, layout.grad(p.tensor)) + p.begin;
  for (size_t s = 0; s < layout.states; ++s)
    run.state[s] = in_ptr<T>(args, layout.state(p.tensor, s)) + p.begin;
  return run;
}

template <class T>
ir::BoundKernel prepare_squares(const ir::KernelInit& init, const Plan& update) {
  const bool is_lamb = init.node.attrs.get_string("rule", "") == "lamb";
  const cpu::LambRule fixed = lamb_rule(init.node.attrs);
  const auto plan = std::make_shared<const TrustPlan>(init.node, update);
  auto run = [=](const ir::RunArgs& args) {
    const TrustWorkspace work(*plan, args.workspace);
    if (is_lamb) {
      const cpu::LambRule rule = at_step(fixed, update->scalars(args));
      plan->pieces.run(cpu::pool_of(args.stream), [&](size_t i, const Piece& p) {
        const cpu::RunNorms norms = lamb_norms<T>(rule, read_only<T>(update->layout, args, p));
        work.first[i] = norms.param;
        work.second[i] = norms.update;
      });
    } else {
      lars_squares<T>(*plan, args, work);
    }
    double* out = out_ptr<double>(args, 0);
    size_t before = 0;
    for (size_t t = 0; t < update->groups; ++t) {
      plan->block_sums(work.first, t, out + before);
      plan->block_sums(work.second, t, out + plan->blocks_before_ranks + before);
      before += static_cast<size_t>(plan->blocks[t]);
    }
  };
  return {std::move(run), TrustWorkspace::bytes(*plan)};
}

}  // namespace

std::vector<ir::Kernel> lamb_update_cpu_kernels() {
  return {update_kernel("lamb_update", [](auto zero, const ir::KernelInit& init, const Plan& plan) {
    return prepare_lamb<decltype(zero)>(init, plan);
  })};
}
std::vector<ir::Kernel> trust_squares_cpu_kernels() {
  const auto prepare = [](const ir::KernelInit& init) {
    const UpdateLayout layout = update_layout(init.node.attrs.get_string("rule", "") + "_update");
    const auto plan = std::make_shared<const UpdatePlan>(init.node, layout);
    return visit_float(init.node.in.at(kUpdateScalars).dtype,
                       [&](auto zero) { return prepare_squares<decltype(zero)>(init, plan); });
  };
  return {{.name = "vector", .refuse = {}, .prepare = prepare}};
}
std::vector<ir::Kernel> lars_update_cpu_kernels() {
  return {update_kernel("lars_update", [](auto zero, const ir::KernelInit& init, const Plan& plan) {
    return prepare_lars<decltype(zero)>(init, plan);
  })};
}

}  // namespace trireme::ops
