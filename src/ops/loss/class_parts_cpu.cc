// Kernels of cross_entropy_part, cross_entropy_total and cross_entropy_join on CPU.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/norm/cross_entropy.h"
#include "ops/kernel_forms.h"
#include "ops/loss/loss_cuts.h"
#include "ops/loss/loss_kernels.h"
#include "tensor/shard.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

/// Where an operand holds the targets, and in which type.
struct Targets {
  size_t operand;
  bool is_wide;  // i64 rather than i32
  int64_t ignored, classes;

  int64_t at(const ir::RunArgs& args, int64_t row) const {
    return is_wide ? in_ptr<int64_t>(args, operand)[row] : in_ptr<int32_t>(args, operand)[row];
  }
  bool counts(int64_t target) const { return target != ignored && target >= 0 && target < classes; }
};

Targets targets_of(const ir::NodeView& n, size_t operand, int64_t classes) {
  return {operand, n.in[operand].dtype == DType::i64, n.attrs.get_int("ignore_index", -100),
          n.attrs.get_int("classes", classes)};
}

struct PartPlan {
  int64_t rows, classes, stride, parts, first;  // stride: scores per row including padded ones
  bool with_mean;
  Targets targets;
};

PartPlan plan_part(const ir::NodeView& n) {
  const Dims x = n.in_dims(0);
  const int64_t classes = class_scores(n);
  return {product(x, 0, x.size() - 1),
          classes,
          x.back(),
          n.out_dims(0).back(),
          n.attrs.get_int("first", 0),
          n.attrs.get_float("label_smoothing", 0) != 0,
          targets_of(n, 1, classes)};
}

/// Reports the first target that is neither a class nor the ignored index.
void check_targets(const PartPlan& p, const ir::RunArgs& args) {
  for (int64_t i = 0; i < p.rows && args.status != nullptr; ++i) {
    const int64_t t = p.targets.at(args, i);
    if (p.targets.counts(t) || t == p.targets.ignored) continue;
    return args.status->fail("a target is neither a class nor ignore_index", t);
  }
}

ir::BoundKernel prepare_vector_part(const ir::KernelInit& init) {
  const PartPlan plan = plan_part(init.node);
  auto run = [plan](const ir::RunArgs& args) {
    check_targets(plan, args);
    int64_t* targets = static_cast<int64_t*>(args.workspace);
    for (int64_t i = 0; i < plan.rows; ++i) targets[i] = plan.targets.at(args, i);
    for (int64_t part = 0; part < plan.parts; ++part) {
      const int64_t begin = tensor::part_begin(plan.classes, int(plan.parts), int(part));
      const int64_t end = tensor::part_begin(plan.classes, int(plan.parts), int(part) + 1);
      cpu::EntropyPart call{.logits = in_ptr<float>(args, 0) + begin, .target = targets};
      call.rows = plan.rows;
      call.stride = plan.stride;
      call.classes = end - begin;
      call.first = plan.first + begin;
      call.result_stride = plan.parts;
      call.results[0] = out_ptr<float>(args, 0) + part;
      for (int64_t i = 0; i < 4; ++i)
        call.results[i + 1] = out_ptr<float>(args, 1) + i * plan.rows * plan.parts + part;
      if (!plan.with_mean) call.results[4] = nullptr;
      cpu::entropy_part(call, cpu::pool_of(args.stream));
    }
  };
  return {run, plan.rows * 8};
}

/// Statistics of one part of one row; see cpu::entropy_part.
template <class T>
void reference_part(const PartPlan& p, const ir::RunArgs& args, int64_t row, int64_t part) {
  const int64_t begin = tensor::part_begin(p.classes, int(p.parts), int(part));
  const int64_t end = tensor::part_begin(p.classes, int(p.parts), int(part) + 1);
  const T* x = in_ptr<T>(args, 0) + row * p.stride;
  const double lowest = -std::numeric_limits<double>::infinity();
  double top = lowest, exps = 0, sum = 0, rival = 0;
  for (int64_t c = begin; c < end; ++c) top = double(x[c]) <= top ? top : double(x[c]);  // NaN wins
  const int64_t target = p.targets.at(args, row) - p.first;
  for (int64_t c = begin; c < end; ++c) {
    if (top != lowest) exps += std::exp(double(x[c]) - top);
    sum += double(x[c]);
    if (c < target && double(x[c]) == top) rival = 1;
  }
  const double own = target >= begin && target < end ? double(x[target]) : std::nan("");
  const double results[] = {exps, own, rival, sum};
  const int64_t at = row * p.parts + part;
  out_ptr<T>(args, 0)[at] = T(top);
  for (int64_t i = 0; i < (p.with_mean ? 4 : 3); ++i)
    out_ptr<T>(args, 1)[i * p.rows * p.parts + at] = T(results[i]);
}

ir::BoundKernel prepare_reference_part(const ir::KernelInit& init) {
  const PartPlan plan = plan_part(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      check_targets(plan, args);
      cpu::pool_of(args.stream).run(plan.rows, [&](int64_t row) {
        for (int64_t part = 0; part < plan.parts; ++part) reference_part<T>(plan, args, row, part);
      });
    }};
  });
}

/// Encodes "the target has the largest score, but so has an earlier class": not 0, but too small to change
/// the loss, whose log-sum-exp is then at least log 2.
constexpr double kBehind = 1e-30;

ir::BoundKernel prepare_total(const ir::KernelInit& init) {
  const Dims peaks = init.node.in_dims(0);
  const int64_t parts = peaks.back(), rows = product(peaks, 0, peaks.size() - 1);
  const bool with_mean = init.node.in_dims(1)[0] == 4;
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      const T *peak = in_ptr<T>(args, 0), *sums = in_ptr<T>(args, 1), *largest = in_ptr<T>(args, 2);
      T* out = out_ptr<T>(args, 0);
      cpu::pool_of(args.stream).for_range(rows, 1024, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const double top = double(largest[row]);
          double exps = 0, score = 0, sum = 0;
          for (int64_t part = 0; part < parts; ++part) {
            const int64_t at = row * parts + part;
            const double m = double(peak[at]), own = double(sums[rows * parts + at]);
            // A part without scores, or with scores of -inf only, has no exponentials to rescale.
            if (sums[at] != 0) exps += double(sums[at]) * std::exp(m - top);
            if (own == own) score += double(T(own - top));
            if (sums[2 * rows * parts + at] != 0 && m == top) score -= kBehind;
            if (with_mean) sum += double(sums[3 * rows * parts + at]);
          }
          out[row] = T(exps);
          out[rows + row] = T(score);
          if (with_mean) out[2 * rows + row] = T(sum);
        }
      });
    }};
  });
}

struct JoinPlan {
  int64_t rows;
  double smooth, z_loss;
  size_t out_count;
  Targets targets;
};

/// The loss of a row whose target is not ignored.
template <class T>
double join_row(const JoinPlan& p, const ir::RunArgs& args, int64_t row, double* lse) {
  const T* totals = in_ptr<T>(args, 1);
  const double top = double(in_ptr<T>(args, 0)[row]), log_sum = std::log(double(totals[row]));
  *lse = top + log_sum;
  double loss = (1 - p.smooth) * (log_sum - double(totals[p.rows + row])) + p.z_loss * *lse * *lse;
  // Without smoothing this term is skipped, because a score of -inf would make it 0 * inf.
  if (p.smooth != 0) loss += p.smooth * (*lse - double(totals[2 * p.rows + row]) / double(p.targets.classes));
  return loss;
}

ir::BoundKernel prepare_join(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const JoinPlan plan{product(n.in_dims(0), 0, n.in_dims(0).size()), n.attrs.get_float("label_smoothing", 0),
                      n.attrs.get_float("z_loss", 0), n.out.size(), targets_of(n, 2, 0)};
  return visit_float(n.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    auto run = [plan](const ir::RunArgs& args) {
      double* losses = static_cast<double*>(args.workspace);
      T* lse_out = plan.out_count > 1 && args.out[1] != nullptr ? out_ptr<T>(args, 1) : nullptr;
      int64_t count = 0, hits = 0;
      for (int64_t row = 0; row < plan.rows; ++row) {
        double lse = 0;
        const bool counts = plan.targets.counts(plan.targets.at(args, row));
        losses[row] = counts ? join_row<T>(plan, args, row, &lse) : 0;
        if (lse_out != nullptr) lse_out[row] = T(lse);
        count += counts ? 1 : 0;
        hits += counts && in_ptr<T>(args, 1)[plan.rows + row] == 0 ? 1 : 0;
      }
      const double sums[] = {cpu::ordered_sum(losses, plan.rows), 0, double(count), double(hits)};
      for (size_t i : {0, 2, 3}) {
        if (i < plan.out_count && args.out[i] != nullptr) *out_ptr<T>(args, i) = T(sums[i]);
      }
    };
    return ir::BoundKernel{run, plan.rows * 8};
  });
}

std::vector<ir::Kernel> rows_kernel(PrepareFn prepare) {
  return {
      {.name = "reference", .is_reference = true, .refuse = refuse_non_float, .prepare = std::move(prepare)}};
}

}  // namespace

std::vector<ir::Kernel> cross_entropy_part_cpu_kernels() {
  const auto refuse = [](const ir::NodeView& n) { return refuse_dtype(n, 0, {DType::f32}); };
  return faster({{.name = "vector", .refuse = refuse, .prepare = prepare_vector_part}},
                float_reference(prepare_reference_part));
}
std::vector<ir::Kernel> cross_entropy_total_cpu_kernels() { return rows_kernel(prepare_total); }
std::vector<ir::Kernel> cross_entropy_join_cpu_kernels() { return rows_kernel(prepare_join); }

}  // namespace trireme::ops
