// Reference kernels of nll_loss and softmax_cross_entropy_loss on CPU.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/kernel_forms.h"
#include "ops/loss/loss_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

enum class Reduction : uint8_t { none, sum, mean };

struct LossPlan {
  int64_t batch, classes, points;  // x [batch, classes, points]
  Reduction reduction;
  bool ignores = false;
  int64_t ignored = 0;
  bool takes_softmax = false;
  size_t in_count = 0, out_count = 0;
};

LossPlan plan_loss(const ir::NodeView& node, bool takes_softmax) {
  const Dims x = node.in_dims(0);
  const std::string reduction = node.attrs.get_string("reduction", "mean");
  LossPlan p{x[0], x[1], product(x, 2, x.size()),
             reduction == "none"  ? Reduction::none
             : reduction == "sum" ? Reduction::sum
                                  : Reduction::mean};
  p.ignores = node.attrs.has("ignore_index");
  p.ignored = node.attrs.get_int("ignore_index", 0);
  p.takes_softmax = takes_softmax;
  p.in_count = node.in.size();
  p.out_count = node.out.size();
  return p;
}

/// Log of the sum of exponentials of the scores at (n, i); 0 if x already holds log-probabilities.
template <class T>
double log_norm(const LossPlan& p, const T* x, int64_t n, int64_t i) {
  if (!p.takes_softmax) return 0;
  const T* line = x + n * p.classes * p.points + i;
  double top = double(line[0]), sum = 0;
  for (int64_t c = 1; c < p.classes; ++c) top = std::max(top, double(line[c * p.points]));
  for (int64_t c = 0; c < p.classes; ++c) sum += std::exp(double(line[c * p.points]) - top);
  return top + std::log(sum);
}

/// Weight and weighted loss of one target; both are 0 if the target is ignored or invalid.
struct Term {
  double weight, loss;
};

template <class T, class I>
Term term_of(const LossPlan& p, const ir::RunArgs& args, int64_t at) {
  const int64_t n = at / p.points, i = at % p.points, target = in_ptr<I>(args, 1)[at];
  if ((p.ignores && target == p.ignored) || target < 0 || target >= p.classes) return {0, 0};
  const T* weights = opt_ptr<T>(args, 2, p.in_count);
  const T* x = in_ptr<T>(args, 0);
  const double weight = weights == nullptr ? 1.0 : double(weights[target]);
  const double log_p = double(x[(n * p.classes + target) * p.points + i]) - log_norm(p, x, n, i);
  return {weight, -weight * log_p};
}

/// Sums over targets in order, as one chain, so that the result is the same for every team.
template <class T, class I>
void run_loss(const LossPlan& p, const ir::RunArgs& args) {
  T* y = out_ptr<T>(args, 0);
  double weight = 0, loss = 0;
  for (int64_t at = 0; at < p.batch * p.points; ++at) {
    const Term term = term_of<T, I>(p, args, at);
    weight += term.weight;
    loss += term.loss;
    if (p.reduction == Reduction::none) y[at] = T(term.loss);
  }
  if (p.reduction == Reduction::sum) *y = T(loss);
  if (p.reduction == Reduction::mean) *y = T(loss / weight);
}

template <class T>
void run_log_probabilities(const LossPlan& p, const ir::RunArgs& args) {
  if (p.out_count < 2 || args.out[1] == nullptr) return;
  const T* x = in_ptr<T>(args, 0);
  T* y = out_ptr<T>(args, 1);
  cpu::pool_of(args.stream).for_range(p.batch * p.points, 64, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t n = at / p.points, i = at % p.points;
      const double norm = log_norm(p, x, n, i);
      for (int64_t c = 0; c < p.classes; ++c) {
        const int64_t e = (n * p.classes + c) * p.points + i;
        y[e] = T(double(x[e]) - norm);
      }
    }
  });
}

PrepareFn prepare(bool takes_softmax) {
  return [takes_softmax](const ir::KernelInit& init) {
    const LossPlan plan = plan_loss(init.node, takes_softmax);
    const bool wide = init.node.in[1].dtype == DType::i64;
    return visit_float(init.node.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      return ir::BoundKernel{[plan, wide](const ir::RunArgs& args) {
        if (wide) {
          run_loss<T, int64_t>(plan, args);
        } else {
          run_loss<T, int32_t>(plan, args);
        }
        run_log_probabilities<T>(plan, args);
      }};
    });
  };
}

/// Gradient of the scores at target `at`: weight dy (p - [c == t]), where p is 0 if x holds
/// log-probabilities. The operands are x, target, dy and optionally the class weights.
template <class T, class I>
void grad_at(const LossPlan& p, const ir::RunArgs& args, int64_t at, double total_weight) {
  const int64_t n = at / p.points, i = at % p.points, target = in_ptr<I>(args, 1)[at];
  const bool counts = !(p.ignores && target == p.ignored) && target >= 0 && target < p.classes;
  const T *x = in_ptr<T>(args, 0), *weights = opt_ptr<T>(args, 3, p.in_count), *dy = in_ptr<T>(args, 2);
  double up = double(p.reduction == Reduction::none ? dy[at] : *dy);
  if (counts && weights != nullptr) up *= double(weights[target]);
  if (p.reduction == Reduction::mean) up /= total_weight;
  const double norm = log_norm(p, x, n, i);
  for (int64_t c = 0; c < p.classes; ++c) {
    const int64_t e = (n * p.classes + c) * p.points + i;
    const double share = p.takes_softmax ? std::exp(double(x[e]) - norm) : 0;
    out_ptr<T>(args, 0)[e] = T(counts ? up * (share - (c == target ? 1 : 0)) : 0);
  }
}

template <class T, class I>
void run_grad(const LossPlan& p, const ir::RunArgs& args) {
  const T* weights = opt_ptr<T>(args, 3, p.in_count);
  double total_weight = 0;
  for (int64_t at = 0; at < p.batch * p.points && p.reduction == Reduction::mean; ++at) {
    const int64_t target = in_ptr<I>(args, 1)[at];
    if ((p.ignores && target == p.ignored) || target < 0 || target >= p.classes) continue;
    total_weight += weights == nullptr ? 1.0 : double(weights[target]);
  }
  cpu::pool_of(args.stream).for_range(p.batch * p.points, 64, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) grad_at<T, I>(p, args, at, total_weight);
  });
}

ir::BoundKernel prepare_grad(const ir::KernelInit& init) {
  const LossPlan plan = plan_loss(init.node, init.node.attrs.get_int("softmax", 0) != 0);
  const bool wide = init.node.in[1].dtype == DType::i64;
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan, wide](const ir::RunArgs& args) {
      (wide ? run_grad<T, int64_t> : run_grad<T, int32_t>)(plan, args);
    }};
  });
}

std::vector<ir::Kernel> class_loss_kernels(PrepareFn bind) {
  const ir::Kernel plain{.name = "reference",
                         .is_reference = true,
                         .refuse = [](const ir::NodeView& n) -> ir::Refusal {
                           if (auto why = refuse_dtype(n, 1, {DType::i32, DType::i64})) return why;
                           return refuse_non_float(n);
                         },
                         .prepare = std::move(bind)};
  return {plain, via_f32(plain)};
}

}  // namespace

std::vector<ir::Kernel> nll_loss_cpu_kernels() { return class_loss_kernels(prepare(false)); }
std::vector<ir::Kernel> softmax_cross_entropy_loss_cpu_kernels() { return class_loss_kernels(prepare(true)); }
std::vector<ir::Kernel> class_loss_grad_cpu_kernels() { return class_loss_kernels(prepare_grad); }

}  // namespace trireme::ops
