// Rounds matrices to a few bits, with feedback of the errors (GPTQ, Frantar et al. 2022).
#include "model/hf/round_weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "tensor/half.h"
#include "tensor/small_float_math.h"

namespace trireme::model::hf {
namespace {

using tensor::DType;

float in_type(float v, DType type) {
  if (type == DType::bf16) return tensor::bf16_bits_to_f32(tensor::f32_to_bf16_bits(v));
  if (type == DType::f16) return tensor::f16_bits_to_f32(tensor::f32_to_f16_bits(v));
  return v;
}

/// The scale and zero point of one group.
struct Step {
  float scale = 1;
  int zero = 0;
};

uint8_t code_of(float w, const Step& s, const RoundedForm& form) {
  if (form.is_float) return tensor::encode_small_float(DType::f8e4m3fn, w / s.scale, true);
  const float top = static_cast<float>((1 << form.bits) - 1);
  const float code = std::nearbyint(w / s.scale) + static_cast<float>(s.zero);
  return static_cast<uint8_t>(std::clamp(code, 0.0f, top));
}

float value_of(uint8_t code, const Step& s, const RoundedForm& form) {
  if (form.is_float) return tensor::decode_small_float(DType::f8e4m3fn, code) * s.scale;
  return static_cast<float>(code - s.zero) * s.scale;
}

/// The step with which a group's range, multiplied by `part`, fills the range of codes. Scales that the type
/// rounds to zero become 1.
Step step_of(float low, float high, float part, const RoundedForm& form) {
  const int middle = form.is_float ? 0 : 1 << (form.bits - 1);
  const float most = std::max(std::abs(low), std::abs(high)) * part;
  Step s{.scale = 0, .zero = middle};
  if (form.is_float) {
    s.scale = most / 448;
  } else if (form.has_zeros) {
    s.scale = (high - low) * part / static_cast<float>(2 * middle - 1);
  } else {
    s.scale = most / (static_cast<float>(middle) - 0.5f);
  }
  s.scale = in_type(s.scale, form.scale_type);
  if (!(s.scale > 0) || !std::isfinite(s.scale)) s.scale = 1;
  if (form.has_zeros && !form.is_float)
    s.zero = std::clamp(static_cast<int>(std::nearbyint(-low * part / s.scale)), 0, 2 * middle - 1);
  return s;
}

/// The step with the least error in a group, weighted by `squares`; with 8 bits, the step for the full range.
Step best_step(const float* w, const float* squares, int64_t count, const RoundedForm& form) {
  const auto [least, most] = std::minmax_element(w, w + count);
  const float low = std::min(*least, 0.0f), high = std::max(*most, 0.0f);
  Step best = step_of(low, high, 1, form);
  if (form.bits == 8) return best;
  constexpr int kTries = 12;
  double fewest = INFINITY;
  for (int i = 0; i < kTries; ++i) {
    const Step s = step_of(low, high, 1.06f - 0.04f * static_cast<float>(i), form);
    double lost = 0;
    for (int64_t j = 0; j < count; ++j) {
      const double d = double(w[j]) - double(value_of(code_of(w[j], s, form), s, form));
      lost += d * d * (squares == nullptr ? 1.0 : double(squares[j]));
    }
    if (lost < fewest) fewest = lost, best = s;
  }
  return best;
}

/// Dot product, in eight independent sums so that the compiler can vectorise it.
template <class T>
T dot(const T* a, const T* b, int64_t n) {
  T sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t u = 0; u < 8; ++u) sums[u] += a[i + u] * b[i + u];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// The order in which columns are rounded, and how much of earlier errors is added to each column.
struct Feedback {
  std::vector<int64_t> order;
  std::vector<float> weights;  // [k, k]: row i holds the weights of the i columns rounded before it
};

/// Cholesky factorisation H = R R', R upper triangular, in place of the upper triangle of h [k, k], from the
/// last column to the first in blocks of columns. Returns false if H is not positive definite.
bool factor(std::vector<double>& h, int64_t k, base::ThreadPool& pool) {
  constexpr int64_t kColumns = 64;
  for (int64_t end = k; end > 0; end -= std::min(end, kColumns)) {
    const int64_t begin = std::max<int64_t>(0, end - kColumns);
    // Subtracts the contribution of the columns after the block.
    pool.for_range(end, 8, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        double* row = h.data() + i * k;
        for (int64_t j = std::max(i, begin); j < end; ++j)
          row[j] -= dot(row + end, h.data() + j * k + end, k - end);
      }
    });
    for (int64_t j = end - 1; j >= begin; --j) {
      double* pivot = h.data() + j * k;
      const double square = pivot[j] - dot(pivot + j + 1, pivot + j + 1, end - j - 1);
      if (!(square > 0)) return false;
      pivot[j] = std::sqrt(square);
      const double root = pivot[j];
      for (int64_t i = begin; i < j; ++i) {
        double* row = h.data() + i * k;
        row[j] = (row[j] - dot(row + j + 1, pivot + j + 1, end - j - 1)) / root;
      }
    }
    pool.for_range(begin, 8, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        double* row = h.data() + i * k;
        for (int64_t j = end - 1; j >= begin; --j) {
          const double* pivot = h.data() + j * k;
          row[j] = (row[j] - dot(row + j + 1, pivot + j + 1, end - j - 1)) / pivot[j];
        }
      }
    });
  }
  return true;
}

Feedback feedback_of(std::span<const float> moments, int64_t k, base::ThreadPool& pool) {
  const auto at = [&](int64_t i, int64_t j) { return double(moments[static_cast<size_t>(i * k + j)]); };
  Feedback f;
  f.order.resize(static_cast<size_t>(k));
  std::iota(f.order.begin(), f.order.end(), int64_t{0});
  std::stable_sort(f.order.begin(), f.order.end(), [&](int64_t a, int64_t b) { return at(a, a) > at(b, b); });
  double mean = 0;
  for (int64_t i = 0; i < k; ++i) mean += at(i, i) / static_cast<double>(k);
  base::require(std::isfinite(mean), "the inputs of a product are not finite");
  std::vector<double> h(static_cast<size_t>(k * k));
  // Channels that are never used, or always used together, make H singular, so a part of its mean is added.
  for (double share = 0.01; share < 100; share *= 10) {
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = i; j < k; ++j)
        h[static_cast<size_t>(i * k + j)] =
            at(f.order[static_cast<size_t>(i)], f.order[static_cast<size_t>(j)]);
      h[static_cast<size_t>(i * k + i)] += share * mean + 1e-30;
    }
    if (factor(h, k, pool)) break;
  }
  f.weights.resize(static_cast<size_t>(k * k));
  pool.for_range(k, 8, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      for (int64_t j = 0; j < i; ++j)
        f.weights[static_cast<size_t>(i * k + j)] =
            static_cast<float>(h[static_cast<size_t>(j * k + i)] / h[static_cast<size_t>(i * k + i)]);
    }
  });
  return f;
}

/// The sum of e H e' over some rows e of [n, k], evenly spaced.
double norm_by(std::span<const float> rows, int64_t k, std::span<const float> moments,
               base::ThreadPool& pool) {
  constexpr int64_t kMost = 256;
  const int64_t n = static_cast<int64_t>(rows.size()) / k, count = std::min(n, kMost);
  std::vector<double> sums(static_cast<size_t>(count));
  pool.run(count, [&](int64_t at) {
    const float* e = rows.data() + at * n / count * k;
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += double(e[i]) * double(dot(e, moments.data() + i * k, k));
    sums[static_cast<size_t>(at)] = sum;
  });
  return std::max(0.0, std::accumulate(sums.begin(), sums.end(), 0.0));
}

class Rounding {
 public:
  Rounding(std::span<const float> w, int64_t k, const RoundedForm& form, std::span<const float> moments,
           base::ThreadPool& pool)
      : moments_(moments),
        w_(w),
        k_(k),
        n_(static_cast<int64_t>(w.size()) / std::max<int64_t>(1, k)),
        form_(form),
        pool_(pool) {
    if (moments.empty()) return;
    for (int64_t i = 0; i < k; ++i) squares_.push_back(moments[static_cast<size_t>(i * k + i)]);
    feedback_ = feedback_of(moments, k, pool);
  }

  RoundedMatrix run() {
    const auto count = static_cast<size_t>(n_ * (k_ / form_.group));
    out_.codes.resize(w_.size());
    out_.scale.resize(count);
    out_.zero.resize(count);
    constexpr int64_t kRows = 16;  // rows that use one row of feedback together
    pool_.run((n_ + kRows - 1) / kRows, [&](int64_t task) {
      const int64_t first = task * kRows, last = std::min(n_, first + kRows);
      for (int64_t row = first; row < last; ++row) choose_steps(row);
      feedback_.order.empty() ? round_plainly(first, last) : round_in_order(first, last);
    });
    measure();
    return std::move(out_);
  }

 private:
  void measure() {
    std::vector<float> missed(w_.size());
    double lost = 0, all = 0;
    for (size_t i = 0; i < w_.size(); ++i) {
      const Step s = step(static_cast<int64_t>(i) / k_, static_cast<int64_t>(i) % k_);
      missed[i] = w_[i] - value_of(out_.codes[i], s, form_);
      lost += double(missed[i]) * double(missed[i]);
      all += double(w_[i]) * double(w_[i]);
      out_.largest = std::max(out_.largest, double(std::abs(missed[i])));
    }
    out_.relative = all > 0 ? std::sqrt(lost / all) : 0;
    if (moments_.empty()) return;
    const double whole = norm_by(w_, k_, moments_, pool_);
    out_.of_products = whole > 0 ? std::sqrt(norm_by(missed, k_, moments_, pool_) / whole) : 0;
  }

  Step step(int64_t row, int64_t column) const {
    const auto at = static_cast<size_t>(row * (k_ / form_.group) + column / form_.group);
    return {out_.scale[at], out_.zero[at]};
  }

  void choose_steps(int64_t row) {
    for (int64_t g = 0; g < k_ / form_.group; ++g) {
      const float* squares = squares_.empty() ? nullptr : squares_.data() + g * form_.group;
      const Step s = best_step(w_.data() + row * k_ + g * form_.group, squares, form_.group, form_);
      const auto at = static_cast<size_t>(row * (k_ / form_.group) + g);
      out_.scale[at] = s.scale;
      out_.zero[at] = static_cast<uint8_t>(s.zero);
    }
  }

  /// Rounds `value` as the code of a weight; returns the rounded value.
  float put(int64_t row, int64_t column, float value) {
    const Step s = step(row, column);
    uint8_t& code = out_.codes[static_cast<size_t>(row * k_ + column)];
    code = code_of(value, s, form_);
    return value_of(code, s, form_);
  }

  void round_plainly(int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < k_; ++i) put(row, i, w_[static_cast<size_t>(row * k_ + i)]);
    }
  }

  void round_in_order(int64_t first, int64_t last) {
    std::vector<float> errors(static_cast<size_t>((last - first) * k_));  // in the order of rounding
    for (int64_t i = 0; i < k_; ++i) {
      const int64_t column = feedback_.order[static_cast<size_t>(i)];
      const float* weights = feedback_.weights.data() + i * k_;
      for (int64_t row = first; row < last; ++row) {
        float* own = errors.data() + (row - first) * k_;
        const float w = w_[static_cast<size_t>(row * k_ + column)];
        own[i] = w - put(row, column, w + dot(own, weights, i));
      }
    }
  }

  std::span<const float> moments_, w_;
  int64_t k_, n_;
  const RoundedForm& form_;
  base::ThreadPool& pool_;
  std::vector<float> squares_;  // by channel: diagonal of the moments; empty: unknown
  Feedback feedback_;
  RoundedMatrix out_;
};

}  // namespace

RoundedMatrix round_weights(std::span<const float> w, int64_t k, const RoundedForm& form,
                            std::span<const float> moments, base::ThreadPool& pool) {
  base::check(k > 0 && k % form.group == 0, "rows of ", k, " weights in groups of ", form.group);
  const auto bad = std::find_if(w.begin(), w.end(), [](float v) { return !std::isfinite(v); });
  base::require(bad == w.end(), "it holds a number that is not finite");
  return Rounding(w, k, form, moments, pool).run();
}

}  // namespace trireme::model::hf
