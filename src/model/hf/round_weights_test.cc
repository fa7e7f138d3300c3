// Tests rounding of matrices: without texts, the nearest codes; with texts, the codes of GPTQ's own
// description, and more accurate products.
#include "model/hf/round_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "tensor/small_float_math.h"

namespace trireme::model::hf {
namespace {

std::vector<float> normal(size_t n, uint64_t seed) {
  base::Rng rng(seed);
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(rng.normal());
  return v;
}

/// Sums of x x' over rows whose channels are correlated and differ in size.
std::vector<float> moments(int64_t k, uint64_t seed) {
  const int64_t rows = 3 * k, few = k / 4;
  const std::vector<float> common = normal(static_cast<size_t>(rows * few), seed);
  const std::vector<float> mix = normal(static_cast<size_t>(few * k), seed + 1);
  const std::vector<float> own = normal(static_cast<size_t>(rows * k), seed + 2);
  std::vector<float> x(static_cast<size_t>(rows * k)), h(static_cast<size_t>(k * k));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      float v = 0.3f * own[static_cast<size_t>(r * k + i)];
      for (int64_t c = 0; c < few; ++c)
        v += common[static_cast<size_t>(r * few + c)] * mix[static_cast<size_t>(c * k + i)];
      x[static_cast<size_t>(r * k + i)] = v * (i % 7 == 3 ? 4.0f : 1.0f);
    }
  }
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r)
        sum += double(x[static_cast<size_t>(r * k + i)]) * double(x[static_cast<size_t>(r * k + j)]);
      h[static_cast<size_t>(i * k + j)] = static_cast<float>(sum);
    }
  }
  return h;
}

float value(const RoundedMatrix& m, const RoundedForm& form, int64_t k, size_t i) {
  const size_t at = i / static_cast<size_t>(k) * static_cast<size_t>(k / form.group) +
                    i % static_cast<size_t>(k) / static_cast<size_t>(form.group);
  if (form.is_float) return tensor::decode_small_float(tensor::DType::f8e4m3fn, m.codes[i]) * m.scale[at];
  return static_cast<float>(m.codes[i] - m.zero[at]) * m.scale[at];
}

/// Relative error of products: sqrt(tr(E H E') / tr(W H W')).
double of_products(const std::vector<float>& w, const RoundedMatrix& m, const RoundedForm& form, int64_t k,
                   const std::vector<float>& h) {
  double lost = 0, all = 0;
  for (size_t row = 0; row < w.size() / static_cast<size_t>(k); ++row) {
    for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
      for (size_t j = 0; j < static_cast<size_t>(k); ++j) {
        const size_t a = row * static_cast<size_t>(k) + i, b = row * static_cast<size_t>(k) + j;
        const double weight = double(h[i * static_cast<size_t>(k) + j]);
        lost += double(w[a] - value(m, form, k, a)) * weight * double(w[b] - value(m, form, k, b));
        all += double(w[a]) * weight * double(w[b]);
      }
    }
  }
  return std::sqrt(lost / all);
}

/// GPTQ as Frantar et al. 2022 describe it, with the inverse of H, updated after each column.
std::vector<uint8_t> by_inverse(const std::vector<float>& w, int64_t k, const RoundedMatrix& steps,
                                const RoundedForm& form, const std::vector<float>& h) {
  const auto at = [k](int64_t i, int64_t j) { return static_cast<size_t>(i * k + j); };
  double mean = 0;
  for (int64_t i = 0; i < k; ++i) mean += double(h[at(i, i)]) / double(k);
  std::vector<double> a(h.begin(), h.end()), inverse(h.size());
  for (int64_t i = 0; i < k; ++i) a[at(i, i)] += 0.01 * mean, inverse[at(i, i)] = 1;
  for (int64_t p = 0; p < k; ++p) {  // Gauss-Jordan elimination
    const double pivot = a[at(p, p)];
    for (int64_t j = 0; j < k; ++j) a[at(p, j)] /= pivot, inverse[at(p, j)] /= pivot;
    for (int64_t i = 0; i < k; ++i) {
      const double factor = a[at(i, p)];
      for (int64_t j = 0; j < k && i != p; ++j)
        a[at(i, j)] -= factor * a[at(p, j)], inverse[at(i, j)] -= factor * inverse[at(p, j)];
    }
  }
  std::vector<int64_t> order(static_cast<size_t>(k));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t i, int64_t j) { return h[at(i, i)] > h[at(j, j)]; });
  std::vector<double> left(w.begin(), w.end());
  std::vector<uint8_t> codes(w.size());
  for (const int64_t c : order) {
    const double pivot = inverse[at(c, c)];
    for (int64_t row = 0; row < static_cast<int64_t>(w.size()) / k; ++row) {
      const auto step = static_cast<size_t>(row * (k / form.group) + c / form.group);
      const double scale = double(steps.scale[step]), zero = steps.zero[step], v = left[at(row, c)];
      const double code = std::clamp(std::nearbyint(v / scale) + zero, 0.0, std::exp2(form.bits) - 1);
      codes[at(row, c)] = static_cast<uint8_t>(code);
      const double error = (v - (code - zero) * scale) / pivot;
      for (int64_t j = 0; j < k; ++j) left[at(row, j)] -= error * inverse[at(c, j)];
    }
    const std::vector<double> line(inverse.begin() + c * k, inverse.begin() + (c + 1) * k);
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < k; ++j)
        inverse[at(i, j)] -= line[static_cast<size_t>(i)] * line[static_cast<size_t>(j)] / pivot;
    }
  }
  return codes;
}

const RoundedForm kForms[] = {{.bits = 4, .group = 32},
                              {.bits = 4, .group = 96, .has_zeros = true},
                              {.bits = 8, .group = 96},
                              {.bits = 8, .group = 32, .has_zeros = true, .scale_type = tensor::DType::bf16},
                              {.bits = 8, .is_float = true, .group = 96, .scale_type = tensor::DType::f16}};

TEST(RoundWeights, TheNearestCodesWithoutTexts) {
  base::ThreadPool pool(2);
  const std::vector<float> w = normal(17 * 96, 1);
  for (const RoundedForm& form : kForms) {
    const RoundedMatrix m = round_weights(w, 96, form, {}, pool);
    EXPECT_LT(m.relative, form.bits == 4 ? 0.15 : form.is_float ? 0.03 : 0.012);
    double largest = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      const float own = value(m, form, 96, i), missed = std::abs(w[i] - own);
      largest = std::max(largest, double(missed));
      // No neighbouring code of the group is nearer.
      RoundedMatrix other = m;
      for (const int by : {-1, 1}) {
        const int code = m.codes[i] + by;
        if (code < 0 || code >= 1 << form.bits || (form.is_float && (code & 0x7f) == 0x7f)) continue;
        other.codes[i] = static_cast<uint8_t>(code);
        const float there = value(other, form, 96, i);
        EXPECT_LE(missed, std::abs(w[i] - there) + 1e-6f) << i;
      }
    }
    EXPECT_FLOAT_EQ(static_cast<float>(m.largest), static_cast<float>(largest));
  }
}

TEST(RoundWeights, AsGptqDescribesItself) {
  base::ThreadPool pool(2);
  constexpr int64_t kDepth = 96;
  const std::vector<float> w = normal(40 * kDepth, 2), h = moments(kDepth, 5);
  for (const RoundedForm& form : kForms) {
    if (form.is_float) continue;
    const RoundedMatrix m = round_weights(w, kDepth, form, h, pool);
    const std::vector<uint8_t> want = by_inverse(w, kDepth, m, form, h);
    // A weight on the border between two codes may change all later codes in its row.
    size_t rows = 0;
    for (size_t row = 0; row < 40; ++row)
      rows += std::equal(want.begin() + int64_t(row) * kDepth, want.begin() + int64_t(row + 1) * kDepth,
                         m.codes.begin() + int64_t(row) * kDepth);
    EXPECT_GE(rows, 36u);
  }
}

TEST(RoundWeights, ProductsComeOutNearer) {
  base::ThreadPool pool(2);
  constexpr int64_t kDepth = 192;  // more than one block of columns
  const std::vector<float> w = normal(24 * kDepth, 3), h = moments(kDepth, 9);
  for (RoundedForm form : kForms) {
    if (kDepth % form.group != 0) continue;
    const RoundedMatrix plain = round_weights(w, kDepth, form, {}, pool);
    const RoundedMatrix rounded = round_weights(w, kDepth, form, h, pool);
    const double before = of_products(w, plain, form, kDepth, h),
                 after = of_products(w, rounded, form, kDepth, h);
    EXPECT_LT(after, 0.6 * before) << form.bits;
    EXPECT_NEAR(rounded.of_products, after, 1e-3 * after);
    EXPECT_EQ(plain.of_products, 0);
  }
}

TEST(RoundWeights, ChannelsThatAreNeverUsed) {
  base::ThreadPool pool(1);
  std::vector<float> h(32 * 32);  // all but one channel are zero
  h[33] = 4;
  const std::vector<float> w = normal(3 * 32, 4);
  const RoundedMatrix m = round_weights(w, 32, {.bits = 4, .group = 32}, h, pool);
  EXPECT_TRUE(std::isfinite(m.relative));
  EXPECT_LT(m.of_products, 0.2);
  const RoundedMatrix none = round_weights(std::vector<float>(64), 32, {.bits = 4, .group = 32}, {}, pool);
  EXPECT_EQ(none.relative, 0);
  std::vector<float> broken = w;
  broken[40] = NAN;
  EXPECT_THROW(round_weights(broken, 32, {.bits = 4, .group = 32}, {}, pool), base::Error);
}

}  // namespace
}  // namespace trireme::model::hf
