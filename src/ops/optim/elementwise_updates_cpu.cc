// Kernels of sgd_update, momentum_update, adam_update, ema_weights, ema_update and tree_accumulate on CPU.
#include <bit>
#include <cmath>
#include <cstring>

#include "ops/optim/update_pieces_cpu.h"

namespace trireme::ops {
namespace {

using Plan = std::shared_ptr<const UpdatePlan>;

/// A kernel with independent pieces: `rule(scalars)` once per launch, then `run(rule, run)` for each piece.
template <class T, class RuleOf, class Run>
ir::BoundKernel one_pass(const Plan& plan, RuleOf rule_of, Run run) {
  return {[=](const ir::RunArgs& args) {
    const auto rule = rule_of(plan->scalars(args));
    plan->pieces.run(cpu::pool_of(args.stream), [&](size_t, const Piece& p) {
      run(rule, plan->template run_of<T>(args, p));
      plan->round_piece(args, p);
    });
  }};
}

/// Plain descent and momentum; the rule distinguishes them by momentum == 0.
template <class T>
ir::BoundKernel prepare_sgd(const ir::KernelInit& init, const Plan& plan) {
  const ir::Attrs& attrs = init.node.attrs;
  const cpu::SgdRule fixed{.l2 = attrs.get_float("weight_decay", 0),
                           .momentum = attrs.get_float("momentum", 0),
                           .keep = 1 - attrs.get_float("dampening", 0),
                           .nesterov = attrs.get_int("nesterov", 0) != 0};
  const auto rule_of = [fixed](const UpdateScalars& s) {
    cpu::SgdRule rule = fixed;
    rule.grad_scale = s.grad_scale;
    rule.lr = s.lr;
    rule.first = s.step <= 1;
    return rule;
  };
  return one_pass<T>(plan, rule_of, cpu::sgd_run<T>);
}

/// Bias corrections are computed in double once per launch; weight decay is decoupled (AdamW) or added to g.
template <class T>
ir::BoundKernel prepare_adam(const ir::KernelInit& init, const Plan& plan) {
  const ir::Attrs& attrs = init.node.attrs;
  const double decay = attrs.get_float("weight_decay", 0);
  const bool decoupled = attrs.get_int("decoupled", 1) != 0;
  const cpu::AdamRule fixed{.l2 = decoupled ? 0 : decay,
                            .beta1 = attrs.get_float("beta1", 0.9),
                            .beta2 = attrs.get_float("beta2", 0.999),
                            .eps = attrs.get_float("epsilon", 1e-8)};
  const auto rule_of = [=](const UpdateScalars& s) {
    cpu::AdamRule rule = fixed;
    rule.grad_scale = s.grad_scale;
    rule.rate = s.lr / (1 - std::pow(rule.beta1, s.step));
    rule.root = 1 / std::sqrt(1 - std::pow(rule.beta2, s.step));
    rule.decay = decoupled ? 1 - s.lr * decay : 1;
    return rule;
  };
  return one_pass<T>(plan, rule_of, cpu::adam_run<T>);
}

/// The result of a skipped average: unchanged in place, otherwise a copy.
template <class T>
void copy_unless_same(const T* from, T* to, int64_t n) {
  if (from != to && n > 0) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
}

/// ema_weights(step, skip, (ema, value)...) has no gradient operand, so it is not an UpdatePlan.
ir::BoundKernel prepare_ema_weights(const ir::KernelInit& init) {
  std::vector<int64_t> elements;
  for (size_t i = 2; i < init.node.in.size(); i += 2)
    elements.push_back(tensor::element_count(init.node.in_dims(i)));
  const auto pieces = std::make_shared<const PiecePlan>(elements);
  const double keep = init.node.attrs.get_float("keep", 0.999);
  const bool ramp = init.node.attrs.get_int("ramp", 0) != 0;
  const tensor::DType type = init.node.in.size() > 2 ? init.node.in[2].dtype : tensor::DType::f32;
  return visit_float(type, [&](auto zero) {
    using T = decltype(zero);
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      const bool skip = args.in[1] != nullptr && *in_ptr<bool>(args, 1);
      const double t = static_cast<double>(*in_ptr<int64_t>(args, 0));
      const double k = ramp ? std::min(keep, (1 + t) / (10 + t)) : keep;
      pieces->run(cpu::pool_of(args.stream), [&](size_t, const Piece& p) {
        const T* state = in_ptr<T>(args, 2 + 2 * p.tensor) + p.begin;
        T* out = out_ptr<T>(args, p.tensor) + p.begin;
        if (skip) return copy_unless_same(state, out, p.size());
        cpu::ema_run<T>(k, {state, in_ptr<T>(args, 3 + 2 * p.tensor) + p.begin, {}, out, {}, p.size()});
      });
    }};
  });
}

/// (state, value, skip?) -> new state.
ir::BoundKernel prepare_ema_update(const ir::KernelInit& init) {
  const double keep = init.node.attrs.get_float("keep", 0.9);
  const auto pieces =
      std::make_shared<const PiecePlan>(std::vector<int64_t>{tensor::element_count(init.node.in_dims(0))});
  const bool has_flag = init.node.present(2);
  return visit_float(init.node.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      const bool skip = has_flag && *in_ptr<bool>(args, 2);
      pieces->run(cpu::pool_of(args.stream), [&](size_t, const Piece& p) {
        const T* state = in_ptr<T>(args, 0) + p.begin;
        T* out = out_ptr<T>(args, 0) + p.begin;
        if (skip) return copy_unless_same(state, out, p.size());
        cpu::ema_run<T>(keep, {state, in_ptr<T>(args, 1) + p.begin, {}, out, {}, p.size()});
      });
    }};
  });
}

/// tree_accumulate(count, value, level sums ...): level `top` is free, all lower levels hold sums to be
/// added.
template <class T>
void add_up_the_tree(const ir::RunArgs& args, const Piece& p, size_t levels, size_t top) {
  const T* sum = in_ptr<T>(args, 1) + p.begin;
  T* to = out_ptr<T>(args, top) + p.begin;
  if (top == 0) copy_unless_same(sum, to, p.size());
  for (size_t level = 0; level < levels; ++level) {
    const T* held = in_ptr<T>(args, 2 + level) + p.begin;
    if (level < top) {
      cpu::accumulate_run<T>({held, sum, {}, to, {}, p.size()});
      sum = to;
    }
    if (level != top) copy_unless_same(held, out_ptr<T>(args, level) + p.begin, p.size());
  }
}

ir::BoundKernel prepare_tree_accumulate(const ir::KernelInit& init) {
  const size_t levels = init.node.in.size() - 2;
  const auto pieces =
      std::make_shared<const PiecePlan>(std::vector<int64_t>{tensor::element_count(init.node.in_dims(1))});
  return visit_float(init.node.in[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      const int64_t count = *in_ptr<int64_t>(args, 0);
      const auto top = static_cast<size_t>(std::countr_one(static_cast<uint64_t>(count)));
      if (top >= levels) {
        if (args.status != nullptr) args.status->fail("more terms than the levels hold", count);
        return;
      }
      pieces->run(cpu::pool_of(args.stream),
                  [&](size_t, const Piece& p) { add_up_the_tree<T>(args, p, levels, top); });
    }};
  });
}

std::vector<ir::Kernel> one(PrepareFn prepare) {
  return {{.name = "vector", .refuse = {}, .prepare = std::move(prepare)}};
}

}  // namespace

std::vector<ir::Kernel> sgd_update_cpu_kernels() {
  return {update_kernel("sgd_update", [](auto zero, const ir::KernelInit& init, const Plan& plan) {
    return prepare_sgd<decltype(zero)>(init, plan);
  })};
}
std::vector<ir::Kernel> momentum_update_cpu_kernels() {
  return {update_kernel("momentum_update", [](auto zero, const ir::KernelInit& init, const Plan& plan) {
    return prepare_sgd<decltype(zero)>(init, plan);
  })};
}
std::vector<ir::Kernel> adam_update_cpu_kernels() {
  return {update_kernel("adam_update", [](auto zero, const ir::KernelInit& init, const Plan& plan) {
    return prepare_adam<decltype(zero)>(init, plan);
  })};
}
std::vector<ir::Kernel> ema_weights_cpu_kernels() { return one(prepare_ema_weights); }
std::vector<ir::Kernel> ema_update_cpu_kernels() { return one(prepare_ema_update); }
std::vector<ir::Kernel> tree_accumulate_cpu_kernels() { return one(prepare_tree_accumulate); }

}  // namespace trireme::ops
