// Kernels of lamb_update and lars_update on CPU: the step of each parameter is scaled by a ratio of norms.
#include <cmath>

#include "ops/optim/update_pieces_cpu.h"

namespace trireme::ops {
namespace {

using Plan = std::shared_ptr<const UpdatePlan>;

/// Two sums of squares per piece, then per parameter its rate: the workspace of one launch.
struct TrustWorkspace {
  double *first, *second;  // [pieces]
  double* rate;            // [parameters]
  TrustWorkspace(const UpdatePlan& plan, void* memory)
      : first(static_cast<double*>(memory)),
        second(first + plan.pieces.pieces().size()),
        rate(second + plan.pieces.pieces().size()) {}
  static int64_t bytes(const UpdatePlan& plan) {
    return static_cast<int64_t>(sizeof(double) * (2 * plan.pieces.pieces().size() + plan.groups));
  }
};

/// Norm of one parameter from the sums of its pieces, added by halves.
double norm_of(const UpdatePlan& plan, const double* sums, size_t tensor) {
  const size_t first = plan.pieces.first(tensor);
  return std::sqrt(pairwise_sum(sums + first, plan.pieces.first(tensor + 1) - first));
}

/// Two passes: moments and both norms, then the step. The direction is computed in each: storing it would
/// move as many bytes and need memory the size of the parameters.
template <class T>
ir::BoundKernel prepare_lamb(const ir::KernelInit& init, const Plan& plan) {
  const ir::Attrs& attrs = init.node.attrs;
  const double beta1 = attrs.get_float("beta1", 0.9);
  const cpu::LambRule fixed{.beta1 = beta1,
                            .take1 = attrs.get_int("grad_averaging", 1) != 0 ? 1 - beta1 : 1,
                            .beta2 = attrs.get_float("beta2", 0.999),
                            .eps = attrs.get_float("epsilon", 1e-6),
                            .weight_decay = attrs.get_float("weight_decay", 0)};
  const bool adapt = attrs.get_int("adapt", 1) != 0;
  auto run = [=](const ir::RunArgs& args) {
    const UpdateScalars s = plan->scalars(args);
    const TrustWorkspace work(*plan, args.workspace);
    cpu::LambRule rule = fixed;
    rule.grad_scale = s.grad_scale;
    rule.inverse = 1 / (1 - std::pow(beta1, s.step));
    rule.root = 1 / std::sqrt(1 - std::pow(rule.beta2, s.step));
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    plan->pieces.run(pool, [&](size_t i, const Piece& p) {
      const cpu::RunNorms norms = cpu::lamb_moments<T>(rule, plan->template run_of<T>(args, p));
      work.first[i] = norms.param;
      work.second[i] = norms.update;
    });
    for (size_t t = 0; t < plan->groups; ++t) {
      const double param = norm_of(*plan, work.first, t), update = norm_of(*plan, work.second, t);
      work.rate[t] = adapt && param != 0 && update != 0 ? s.lr * (param / update) : s.lr;
    }
    plan->pieces.run(pool, [&](size_t, const Piece& p) {
      cpu::lamb_apply<T>(rule, work.rate[p.tensor], plan->template run_of<T>(args, p));
    });
  };
  return {std::move(run), TrustWorkspace::bytes(*plan)};
}

/// Norms of parameter and gradient first (read only), then one pass of momentum. The rate is inside the
/// momentum, so a change of lr acts on what is added from then on.
template <class T>
ir::BoundKernel prepare_lars(const ir::KernelInit& init, const Plan& plan) {
  const ir::Attrs& attrs = init.node.attrs;
  const bool adapt = attrs.get_int("adapt", 1) != 0;
  const double eta = attrs.get_float("eta", 0.001), eps = attrs.get_float("epsilon", 1e-8);
  const double decay = attrs.get_float("weight_decay", 0);
  const cpu::LarsRule fixed{.momentum = attrs.get_float("momentum", 0.9), .weight_decay = decay};
  auto run = [=](const ir::RunArgs& args) {
    const UpdateScalars s = plan->scalars(args);
    const TrustWorkspace work(*plan, args.workspace);
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    if (adapt) {
      plan->pieces.run(pool, [&](size_t i, const Piece& p) {
        const cpu::UpdateRun<T> r = plan->template run_of<T>(args, p);
        work.first[i] = cpu::sum_squares(r.param, r.n);
        work.second[i] = cpu::sum_squares(r.grad, r.n);
      });
    }
    for (size_t t = 0; t < plan->groups; ++t) {
      work.rate[t] = s.lr;
      if (!adapt) continue;
      const double param = norm_of(*plan, work.first, t);
      const double grad = norm_of(*plan, work.second, t) * std::abs(s.grad_scale);
      if (param != 0 && grad != 0) work.rate[t] *= eta * param / (grad + decay * param + eps);
    }
    plan->pieces.run(pool, [&](size_t, const Piece& p) {
      cpu::LarsRule rule = fixed;
      rule.grad_scale = s.grad_scale;
      rule.rate = work.rate[p.tensor];
      cpu::lars_run<T>(rule, plan->template run_of<T>(args, p));
    });
  };
  return {std::move(run), TrustWorkspace::bytes(*plan)};
}

}  // namespace

std::vector<ir::Kernel> lamb_update_cpu_kernels() {
  return {update_kernel("lamb_update", [](auto zero, const ir::KernelInit& init, const Plan& plan) {
    return prepare_lamb<decltype(zero)>(init, plan);
  })};
}
std::vector<ir::Kernel> lars_update_cpu_kernels() {
  return {update_kernel("lars_update", [](auto zero, const ir::KernelInit& init, const Plan& plan) {
    return prepare_lars<decltype(zero)>(init, plan);
  })};
}

}  // namespace trireme::ops
