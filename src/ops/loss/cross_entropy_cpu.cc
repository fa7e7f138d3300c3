// Kernels of cross_entropy and cross_entropy_grad on CPU.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/norm/cross_entropy.h"
#include "ops/kernel_forms.h"
#include "ops/loss/loss_cuts.h"
#include "ops/loss/loss_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

struct EntropyPlan {
  int64_t rows, classes, stride;  // stride: scores per row including padded ones
  int64_t first, all_classes;     // for a backward pass over some of the classes
  cpu::EntropyTerms terms;
  bool wide_target;  // i64 rather than i32
  size_t out_count;
  // Offsets in the workspace: targets as i64, losses, log_sum_exp if it is not a result, hits.
  int64_t target_at, loss_at, lse_at, correct_at, bytes;
};

EntropyPlan plan_entropy(const ir::NodeView& node) {
  const Dims x = node.in_dims(0);
  EntropyPlan p{};
  p.rows = product(x, 0, x.size() - 1);
  p.classes = class_scores(node);
  p.stride = x.back();
  p.first = node.attrs.get_int("first", 0);
  p.all_classes = node.attrs.get_int("classes", p.classes);
  p.terms = {node.attrs.get_int("ignore_index", -100), node.attrs.get_float("label_smoothing", 0),
             node.attrs.get_float("z_loss", 0)};
  p.wide_target = node.in[1].dtype == DType::i64;
  p.out_count = node.out.size();
  p.loss_at = align_up(p.wide_target ? 0 : p.rows * 8);
  p.lse_at = p.loss_at + align_up(p.rows * 8);
  p.correct_at = p.lse_at + align_up(p.rows * 8);
  p.bytes = p.correct_at + p.rows;
  return p;
}

template <class T>
T* at(const ir::RunArgs& args, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(args.workspace) + offset);
}

/// The targets as i64 [rows]; reports the first that is neither a class nor the ignored index.
const int64_t* wide_targets(const EntropyPlan& p, const ir::RunArgs& args) {
  const int64_t* target = in_ptr<int64_t>(args, 1);
  if (!p.wide_target) {
    int64_t* wide = at<int64_t>(args, p.target_at);
    std::copy_n(in_ptr<int32_t>(args, 1), p.rows, wide);
    target = wide;
  }
  for (int64_t i = 0; i < p.rows; ++i) {
    const bool fits = (target[i] >= 0 && target[i] < p.all_classes) || target[i] == p.terms.ignore_index;
    if (fits) continue;
    if (args.status != nullptr) args.status->fail("a target is neither a class nor ignore_index", target[i]);
    break;
  }
  return target;
}

/// Writes the three sums over rows, in an order that depends only on the number of rows.
template <class T>
void write_sums(const EntropyPlan& p, const ir::RunArgs& args, const int64_t* target) {
  const uint8_t* correct = at<uint8_t>(args, p.correct_at);
  int64_t count = 0, hits = 0;
  for (int64_t i = 0; i < p.rows; ++i) {
    count += target[i] != p.terms.ignore_index && target[i] >= 0 && target[i] < p.all_classes ? 1 : 0;
    hits += correct[i];
  }
  const double sums[] = {cpu::ordered_sum(at<double>(args, p.loss_at), p.rows), 0, double(count),
                         double(hits)};
  for (size_t i : {0, 2, 3}) {
    if (i < p.out_count && args.out[i] != nullptr) *out_ptr<T>(args, i) = T(sums[i]);
  }
}

template <class T>
T* log_sums(const EntropyPlan& p, const ir::RunArgs& args) {
  return p.out_count > 1 && args.out[1] != nullptr ? out_ptr<T>(args, 1) : at<T>(args, p.lse_at);
}

ir::BoundKernel prepare_vector(const ir::KernelInit& init) {
  const EntropyPlan plan = plan_entropy(init.node);
  auto run = [plan](const ir::RunArgs& args) {
    const int64_t* target = wide_targets(plan, args);
    cpu::cross_entropy({.logits = in_ptr<float>(args, 0),
                        .target = target,
                        .rows = plan.rows,
                        .classes = plan.classes,
                        .stride = plan.stride,
                        .terms = plan.terms,
                        .log_sum_exp = log_sums<float>(plan, args),
                        .row_loss = at<double>(args, plan.loss_at),
                        .row_correct = at<uint8_t>(args, plan.correct_at)},
                       cpu::pool_of(args.stream));
    write_sums<float>(plan, args, target);
  };
  return {run, plan.bytes};
}

ir::BoundKernel prepare_vector_grad(const ir::KernelInit& init) {
  const EntropyPlan plan = plan_entropy(init.node);
  auto run = [plan](const ir::RunArgs& args) {
    cpu::cross_entropy_grad({.logits = in_ptr<float>(args, 0),
                             .target = wide_targets(plan, args),
                             .log_sum_exp = in_ptr<float>(args, 2),
                             .dlogits = out_ptr<float>(args, 0),
                             .rows = plan.rows,
                             .classes = plan.classes,
                             .stride = plan.stride,
                             .first = plan.first,
                             .all_classes = plan.all_classes,
                             .terms = plan.terms,
                             .dloss = *in_ptr<float>(args, 3)},
                            cpu::pool_of(args.stream));
  };
  return {run, plan.bytes};
}

/// Loss, log_sum_exp and hit of one row whose target is not ignored.
template <class T>
void reference_row(const EntropyPlan& p, const ir::RunArgs& args, int64_t row, int64_t target) {
  const T* x = in_ptr<T>(args, 0) + row * p.stride;
  const int64_t best = std::max_element(x, x + p.classes) - x;
  double exps = 0, sum = 0;
  for (int64_t c = 0; c < p.classes; ++c) {
    exps += std::exp(double(x[c]) - double(x[best]));
    sum += double(x[c]);
  }
  const double lse = double(x[best]) + std::log(exps), smooth = p.terms.label_smoothing;
  log_sums<T>(p, args)[row] = T(lse);
  double loss = (1 - smooth) * (lse - double(x[target])) + p.terms.z_loss * lse * lse;
  // Without smoothing this term is skipped, because a score of -inf would make it 0 * inf.
  if (smooth != 0) loss += smooth * (lse - sum / double(p.classes));
  at<double>(args, p.loss_at)[row] = loss;
  at<uint8_t>(args, p.correct_at)[row] = best == target ? 1 : 0;
}

bool counts(const EntropyPlan& p, int64_t target) {
  return target != p.terms.ignore_index && target >= 0 && target < p.all_classes;
}

ir::BoundKernel prepare_reference(const ir::KernelInit& init) {
  const EntropyPlan plan = plan_entropy(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    auto run = [plan](const ir::RunArgs& args) {
      const int64_t* target = wide_targets(plan, args);
      cpu::pool_of(args.stream).run(plan.rows, [&](int64_t row) {
        if (counts(plan, target[row])) return reference_row<T>(plan, args, row, target[row]);
        log_sums<T>(plan, args)[row] = 0;
        at<double>(args, plan.loss_at)[row] = 0;
        at<uint8_t>(args, plan.correct_at)[row] = 0;
      });
      write_sums<T>(plan, args, target);
    };
    return ir::BoundKernel{run, plan.bytes};
  });
}

template <class T>
void reference_grad_row(const EntropyPlan& p, const ir::RunArgs& args, int64_t row, int64_t target) {
  const T* x = in_ptr<T>(args, 0) + row * p.stride;
  T* dx = out_ptr<T>(args, 0) + row * p.stride;
  std::fill(counts(p, target) ? dx + p.classes : dx, dx + p.stride, T(0));
  if (!counts(p, target)) return;
  const double lse = double(in_ptr<T>(args, 2)[row]), up = double(*in_ptr<T>(args, 3));
  const double smooth = p.terms.label_smoothing;
  for (int64_t c = 0; c < p.classes; ++c) {
    const double share = (1 + 2 * p.terms.z_loss * lse) * std::exp(double(x[c]) - lse);
    dx[c] = T(up * (share - smooth / double(p.all_classes) - (p.first + c == target ? 1 - smooth : 0)));
  }
}

ir::BoundKernel prepare_reference_grad(const ir::KernelInit& init) {
  const EntropyPlan plan = plan_entropy(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    auto run = [plan](const ir::RunArgs& args) {
      const int64_t* target = wide_targets(plan, args);
      cpu::pool_of(args.stream).run(plan.rows, [&](int64_t row) {
        reference_grad_row<T>(plan, args, row, target[row]);
      });
    };
    return ir::BoundKernel{run, plan.bytes};
  });
}

ir::Refusal refuse_vector(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  return refuse_dtype(node, 0, {DType::f32});
}

ir::Refusal refuse_no_classes(const ir::NodeView& node) {
  if (node.in_dims(0).back() == 0) return "there are no classes";
  return refuse_non_float(node);
}

std::vector<ir::Kernel> entropy_kernels(PrepareFn fast, PrepareFn plain, uint32_t may_overwrite) {
  const ir::Kernel vector{
      .name = "vector", .refuse = refuse_vector, .prepare = std::move(fast), .may_overwrite = may_overwrite};
  const ir::Kernel reference{
      .name = "reference", .is_reference = true, .refuse = refuse_no_classes, .prepare = std::move(plain)};
  return faster({vector}, {reference});
}

}  // namespace

std::vector<ir::Kernel> cross_entropy_cpu_kernels() {
  return entropy_kernels(prepare_vector, prepare_reference, 0);
}
std::vector<ir::Kernel> cross_entropy_grad_cpu_kernels() {
  return entropy_kernels(prepare_vector_grad, prepare_reference_grad, 1);
}

}  // namespace trireme::ops
