// Cross entropy with a running maximum and sum (online softmax) over pieces in L1, so that logits are read
// once.
#include "backend/cpu/norm/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/cross_entropy.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_math.inc"
#include "backend/cpu/simd/simd_reduce.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// 4 KiB: the piece is still in L1 when its exponentials are taken.
constexpr size_t kPiece = 1024;

struct RowSums {
  float max = -std::numeric_limits<float>::infinity();
  double exp_sum = 0;  // sum of exp(x - max)
  double sum = 0;      // sum of x; only where labels are smoothed
};

// Sums within a piece are 64 running values in f32; pieces are added in double.
RowSums sums_of_row(const float* x, size_t n, bool with_mean) {
  RowSums s;
  for (size_t i = 0; i < n; i += kPiece) {
    const size_t count = std::min(kPiece, n - i);
    const float top = reduce_run(x + i, count, -std::numeric_limits<float>::infinity(), Same(), MaxFold());
    // Written so that a NaN in the piece becomes the maximum.
    const float max = top <= s.max ? s.max : top;
    if (with_mean) s.sum += static_cast<double>(reduce_run(x + i, count, 0.0f, Same(), AddFold()));
    if (max == -std::numeric_limits<float>::infinity()) continue;
    if (s.exp_sum != 0) s.exp_sum *= std::exp(static_cast<double>(s.max) - static_cast<double>(max));
    const VF m = set(max);
    s.exp_sum += static_cast<double>(reduce_run(
        x + i, count, 0.0f, [=](VF v, size_t) HWY_ATTR { return exp_nonpositive(hn::Sub(v, m)); },
        AddFold()));
    s.max = max;
  }
  return s;
}

bool any_equal(const float* x, size_t n, float value) {
  const VF v = set(value);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if (!hn::AllFalse(kF, hn::Eq(hn::LoadU(kF, x + i), v))) return true;
  }
  for (; i < n; ++i) {
    if (x[i] == value) return true;
  }
  return false;
}

void entropy_rows(const CrossEntropy& g, int64_t begin, int64_t end) {
  const size_t n = static_cast<size_t>(g.classes);
  const double smooth = g.terms.label_smoothing;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = g.logits + row * (g.stride != 0 ? g.stride : g.classes);
    const int64_t target = g.target[row];
    const bool counts = target != g.terms.ignore_index && target >= 0 && target < g.classes;
    g.row_loss[row] = 0;
    g.row_correct[row] = 0;
    g.log_sum_exp[row] = 0;
    if (!counts) continue;
    const RowSums s = sums_of_row(x, n, smooth != 0);
    const double lse = static_cast<double>(s.max) + std::log(s.exp_sum);
    g.log_sum_exp[row] = static_cast<float>(lse);
    double loss = (1 - smooth) * (lse - static_cast<double>(x[target])) + g.terms.z_loss * lse * lse;
    if (smooth != 0) loss += smooth * (lse - s.sum / static_cast<double>(n));
    g.row_loss[row] = loss;
    g.row_correct[row] = x[target] == s.max && !any_equal(x, static_cast<size_t>(target), s.max) ? 1 : 0;
  }
}

void entropy_part_rows(const EntropyPart& g, int64_t begin, int64_t end) {
  const size_t n = static_cast<size_t>(g.classes);
  for (int64_t row = begin; row < end; ++row) {
    const float* x = g.logits + row * g.stride;
    const RowSums s = sums_of_row(x, n, g.results[4] != nullptr);
    const int64_t at = g.target[row] - g.first, to = row * g.result_stride;
    const bool mine = at >= 0 && at < g.classes;
    // A tie counts against the target if the target has the maximum, or belongs to a later part.
    const bool ties = mine ? x[at] == s.max && any_equal(x, static_cast<size_t>(at), s.max) : at > 0 && n > 0;
    g.results[0][to] = s.max;
    g.results[1][to] = static_cast<float>(s.exp_sum);
    g.results[2][to] = mine ? x[at] : std::numeric_limits<float>::quiet_NaN();
    g.results[3][to] = ties ? 1.0f : 0.0f;
    if (g.results[4] != nullptr) g.results[4][to] = static_cast<float>(s.sum);
  }
}

void entropy_grad_rows(const CrossEntropyGrad& g, int64_t begin, int64_t end) {
  const size_t n = static_cast<size_t>(g.classes);
  const double smooth = g.terms.label_smoothing, up = static_cast<double>(g.dloss);
  const int64_t stride = g.stride != 0 ? g.stride : g.classes;
  for (int64_t row = begin; row < end; ++row) {
    float* dx = g.dlogits + row * stride;
    std::fill(dx + n, dx + stride, 0.0f);
    const int64_t target = g.target[row];
    if (target == g.terms.ignore_index || target < 0 || target >= g.all_classes) {
      std::fill(dx, dx + n, 0.0f);
      continue;
    }
    const double lse = static_cast<double>(g.log_sum_exp[row]);
    const VF shift = set(g.log_sum_exp[row]);
    const VF scale = set(static_cast<float>(up * (1 + 2 * g.terms.z_loss * lse)));
    const VF spread = set(static_cast<float>(-up * smooth / static_cast<double>(g.all_classes)));
    map_run(g.logits + row * stride, dx, n,
            [=](VF v) HWY_ATTR { return hn::MulAdd(exp_nonpositive(hn::Sub(v, shift)), scale, spread); });
    const int64_t at = target - g.first;
    if (at < 0 || at >= g.classes) continue;  // belongs to another part
    dx[at] = static_cast<float>(static_cast<double>(dx[at]) - up * (1 - smooth));
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(entropy_rows);
HWY_EXPORT(entropy_grad_rows);
HWY_EXPORT(entropy_part_rows);

namespace {
// 4096 exponentials take some microseconds.
int64_t row_grain(int64_t classes) { return std::max<int64_t>(1, 4096 / std::max<int64_t>(1, classes)); }
}  // namespace

void cross_entropy(const CrossEntropy& args, base::ThreadPool& pool) {
  const auto rows = HWY_DYNAMIC_DISPATCH(entropy_rows);
  pool.for_range(args.rows, row_grain(args.classes), [&](int64_t b, int64_t e) { rows(args, b, e); });
}

void cross_entropy_grad(const CrossEntropyGrad& args, base::ThreadPool& pool) {
  const auto rows = HWY_DYNAMIC_DISPATCH(entropy_grad_rows);
  pool.for_range(args.rows, row_grain(args.classes), [&](int64_t b, int64_t e) { rows(args, b, e); });
}

void entropy_part(const EntropyPart& args, base::ThreadPool& pool) {
  const auto rows = HWY_DYNAMIC_DISPATCH(entropy_part_rows);
  pool.for_range(args.rows, row_grain(args.classes), [&](int64_t b, int64_t e) { rows(args, b, e); });
}

double ordered_sum(const double* x, int64_t n) {
  double chain[8] = {};
  for (int64_t i = 0; i < n; ++i) chain[i % 8] += x[i];
  return ((chain[0] + chain[4]) + (chain[2] + chain[6])) + ((chain[1] + chain[5]) + (chain[3] + chain[7]));
}

}  // namespace trireme::cpu
#endif
