// Training kernels at every SIMD level: dropout draws the same bits, the others agree within rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/norm/batch_norm_train.h"
#include "backend/cpu/norm/cross_entropy.h"
#include "backend/cpu/elementwise/dropout.h"
#include "backend/cpu/norm/norm_grad.h"
#include "backend/cpu/simd/simd_level.h"

namespace trireme::cpu {
namespace {

using Floats = std::vector<float>;

Floats wave(int64_t n, double phase) {
  Floats v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(std::sin(static_cast<double>(i * i % 1009) + phase) * 2 + 0.5);
  return v;
}

/// Appends all values of `more`.
void append(Floats& to, const Floats& more) { to.insert(to.end(), more.begin(), more.end()); }

Floats batch_norm_results(const ChannelShape& s, base::ThreadPool& pool) {
  const int64_t n = s.elements(), c = s.channels;
  const Floats x = wave(n, 1), skip = wave(n, 2), scale = wave(c, 3), bias = wave(c, 4), dy = wave(n, 5);
  Floats y(x.size()), mean(scale.size()), inv(scale.size()), var(scale.size());
  Floats dx(x.size()), dskip(x.size()), dscale(scale.size()), dbias(scale.size());
  std::vector<char> space(static_cast<size_t>(batch_norm_workspace(s)));
  BatchNormTrain f{.shape = s, .x = x.data(), .scale = scale.data(), .bias = bias.data()};
  f.residual = skip.data(), f.y = y.data(), f.mean = mean.data(), f.inv_std = inv.data();
  f.variance_unbiased = var.data(), f.relu = true, f.workspace = space.data();
  batch_norm_train(f, pool);
  BatchNormGrad b{.shape = s, .dy = dy.data(), .x = x.data(), .scale = scale.data(), .bias = bias.data()};
  b.mean = mean.data(), b.inv_std = inv.data(), b.y = y.data(), b.dx = dx.data(), b.dscale = dscale.data();
  b.dbias = dbias.data(), b.dresidual = dskip.data(), b.relu = true, b.workspace = space.data();
  batch_norm_grad(b, pool);
  Floats all;
  for (const Floats* part : {&y, &mean, &inv, &var, &dx, &dskip, &dscale, &dbias}) append(all, *part);
  return all;
}

Floats row_norm_results(int64_t rows, int64_t cols, base::ThreadPool& pool) {
  const Floats dy = wave(rows * cols, 1), x = wave(rows * cols, 2), scale = wave(cols, 3);
  Floats dx(x.size()), dscale(scale.size()), dbias(scale.size());
  std::vector<char> space(static_cast<size_t>(norm_grad_workspace(rows, cols)));
  NormGrad g{.dy = dy.data(), .x = x.data(), .scale = scale.data(), .add = x.data(), .dx = dx.data()};
  g.dscale = dscale.data(), g.dbias = dbias.data(), g.rows = rows, g.cols = cols, g.workspace = space.data();
  norm_grad(g, pool);
  append(dx, dscale);
  append(dx, dbias);
  return dx;
}

Floats entropy_results(int64_t rows, int64_t classes, base::ThreadPool& pool) {
  const Floats x = wave(rows * classes, 1);
  std::vector<int64_t> target(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) target[static_cast<size_t>(i)] = i * 7 % classes;
  Floats lse(target.size()), dx(x.size());
  std::vector<double> losses(target.size());
  std::vector<uint8_t> correct(target.size());
  CrossEntropy f{.logits = x.data(), .target = target.data(), .rows = rows, .classes = classes};
  f.terms = {-100, 0.1, 1e-3};
  f.log_sum_exp = lse.data(), f.row_loss = losses.data(), f.row_correct = correct.data();
  cross_entropy(f, pool);
  CrossEntropyGrad b{.logits = x.data(), .target = target.data(), .log_sum_exp = lse.data()};
  b.dlogits = dx.data(), b.rows = rows, b.classes = classes, b.terms = f.terms;
  cross_entropy_grad(b, pool);
  append(dx, lse);
  append(dx, Floats(losses.begin(), losses.end()));
  append(dx, Floats(correct.begin(), correct.end()));
  return dx;
}

Floats all_results() {
  base::ThreadPool pool(3);
  Floats all;
  for (const ChannelShape& s : {ChannelShape{300, 37, 1}, ChannelShape{3, 5, 70}, ChannelShape{9, 3, 1}})
    append(all, batch_norm_results(s, pool));
  for (int64_t cols : {1, 31, 400}) append(all, row_norm_results(70, cols, pool));
  for (int64_t classes : {3, 47, 2100}) append(all, entropy_results(5, classes, pool));
  return all;
}

Floats dropped() {
  base::ThreadPool pool(3);
  const Floats x = wave(1000, 1);
  Floats y(x.size());
  dropout({.x = x.data(), .y = y.data(), .n = 1000, .first = 77, .seed = 5, .stream = 9, .ratio = 0.3}, pool);
  return y;
}

class TrainingAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void TearDown() override { simd_unforce(); }
};

TEST_P(TrainingAtLevel, AgreesWithTheBest) {
  const Floats want = all_results(), same = dropped();
  simd_force(GetParam());
  const Floats got = all_results();
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(want[i], got[i], 1e-4 * std::max(1.0f, std::abs(want[i]))) << i;
  EXPECT_EQ(same, dropped());
}

INSTANTIATE_TEST_SUITE_P(Levels, TrainingAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

}  // namespace
}  // namespace trireme::cpu
