// Updates against scalar loops with the same roundings (bit for bit): in pieces, in place, skipped, at every
// SIMD level; the examples of the training contracts; norms and clipping.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/simd/simd_level.h"
#include "ops/optim/norm_blocks.h"
#include "ops/optim/test_update_cpu.h"

namespace trireme::ops::testing {
namespace {

const std::vector<int64_t> kSizes{1, 3, 0, 16, 33, 100, 1024, 5000, 40001};

/// Vector parameters with states; second moments are not negative.
std::vector<Group> vectors(size_t states, const std::vector<int64_t>& sizes = kSizes) {
  std::vector<Group> groups;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Group g{random_tensor(DType::f32, {sizes[i]}, -2, 2, 10 * i + 1),
            random_tensor(DType::f32, {sizes[i]}, -1, 1, 10 * i + 2)};
    for (size_t s = 0; s < states; ++s)
      g.push_back(random_tensor(DType::f32, {sizes[i]}, s == 0 ? -0.5 : 0, 0.5, 10 * i + 3 + s));
    groups.push_back(std::move(g));
  }
  return groups;
}

/// Matrices with the two factors of Adafactor (states = 2) or one buffer of the same shape (states = 1).
std::vector<Group> matrices(size_t states) {
  std::vector<Group> groups;
  std::vector<tensor::Dims> shapes{{1, 1}, {3, 5}, {40, 7}, {7, 40}, {0, 4}, {4, 0}, {300, 130}};
  if (states == 2) shapes.push_back({8, 5, 3, 3});
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto& d = shapes[i];
    Group g{random_tensor(DType::f32, d, -2, 2, 10 * i + 1), random_tensor(DType::f32, d, -1, 1, 10 * i + 2)};
    if (states == 1) g.push_back(random_tensor(DType::f32, d, -0.5, 0.5, 10 * i + 3));
    if (states == 2) {
      tensor::Dims row = d, col = d;
      row[d.size() - 1] = col[d.size() - 2] = 1;
      g.push_back(random_tensor(DType::f32, row, 0.1, 0.5, 10 * i + 3));
      g.push_back(random_tensor(DType::f32, col, 0.1, 0.5, 10 * i + 4));
    }
    groups.push_back(std::move(g));
  }
  return groups;
}

std::vector<Group> groups_for(const std::string& op) {
  if (op == "adafactor_update") return matrices(2);
  if (op == "muon_update") return matrices(1);
  return vectors(update_layout(op).states);
}

const std::vector<std::string> kOps{"sgd_update",  "momentum_update", "adam_update",
                                    "lamb_update", "lars_update",     "adafactor_vector_update",
                                    "muon_update", "adafactor_update"};

struct Scalars {
  float lr, scale, decay;
};

/// Applies `step(p, g, s0, s1)` to every element of every group.
template <class Step>
void scalar_loop(std::vector<Group>& groups, const Step& step) {
  float none = 0;
  for (Group& group : groups) {
    const auto p = group[0].mutable_data<float>();
    const auto g = group[1].data<float>();
    for (size_t i = 0; i < p.size(); ++i) {
      float& s0 = group.size() > 2 ? group[2].mutable_data<float>()[i] : none;
      float& s1 = group.size() > 3 ? group[3].mutable_data<float>()[i] : none;
      step(p[i], g[i], s0, s1);
    }
  }
}

class UpdateAtLevel : public ::testing::TestWithParam<cpu::SimdLevel> {
 protected:
  void SetUp() override { cpu::simd_force(GetParam()); }
  void TearDown() override { cpu::simd_unforce(); }
};

TEST_P(UpdateAtLevel, PlainDescentIsTheScalarLoop) {
  std::vector<Group> want = vectors(0), got = clones(want);
  run_update({.op = "sgd_update", .attrs = {{"weight_decay", 0.01}}, .lr = 0.1, .grad_scale = 0.7f}, got);
  scalar_loop(want, [](float& p, float g, float&, float&) {
    g = g * 0.7f;
    g = g + 0.01f * p;
    p = p - 0.1f * g;
  });
  EXPECT_EQ(difference(got, want), "") << "sgd";
}

TEST_P(UpdateAtLevel, MomentumIsTheScalarLoop) {
  for (int64_t nesterov : {0, 1}) {
    for (int64_t step : {1, 2}) {
      std::vector<Group> want = vectors(1), got = clones(want);
      const ir::Attrs attrs{{"momentum", 0.9}, {"dampening", 0.25}, {"nesterov", nesterov}};
      run_update({.op = "momentum_update", .attrs = attrs, .lr = 0.1, .step = step, .grad_scale = 0.5f}, got);
      scalar_loop(want, [&](float& p, float g, float& v, float&) {
        g = g * 0.5f;
        v = step == 1 ? g : 0.9f * v + 0.75f * g;
        const float u = nesterov ? g + 0.9f * v : v;
        p = p - 0.1f * u;
      });
      EXPECT_EQ(difference(got, want), "") << base::concat("nesterov ", nesterov, " step ", step);
    }
  }
}

TEST_P(UpdateAtLevel, AdamIsTheScalarLoop) {
  for (int64_t decoupled : {0, 1}) {
    std::vector<Group> want = vectors(2), got = clones(want);
    const ir::Attrs attrs{{"weight_decay", 0.01}, {"decoupled", decoupled}};
    run_update({.op = "adam_update", .attrs = attrs, .lr = 0.1, .step = 7, .grad_scale = 0.3f}, got);
    const double lr = static_cast<double>(0.1f);
    const float rate = static_cast<float>(lr / (1 - std::pow(0.9, 7)));
    const float root = static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, 7)));
    const float decay = decoupled ? static_cast<float>(1 - lr * 0.01) : 1.0f;
    const float take1 = static_cast<float>(1 - 0.9), take2 = static_cast<float>(1 - 0.999);
    scalar_loop(want, [&](float& p, float g, float& m, float& v) {
      g = g * 0.3f;
      if (!decoupled) g = g + 0.01f * p;
      m = 0.9f * m + take1 * g;
      v = 0.999f * v + take2 * g * g;
      p = p * decay - rate * (m / (std::sqrt(v) * root + 1e-8f));
    });
    EXPECT_EQ(difference(got, want), "") << base::concat("decoupled ", decoupled);
  }
}

double norm2(std::span<const float> x) {
  double sum = 0;
  for (float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

void expect_near_all(const Tensor& got, const std::vector<double>& want, double relative) {
  const std::vector<double> values = got.to_doubles();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(values[i], want[i], relative * (1 + std::abs(want[i]))) << i;
}

TEST_P(UpdateAtLevel, LambFollowsItsFormula) {
  std::vector<Group> got = vectors(2);
  const std::vector<Group> old = clones(got);
  run_update({.op = "lamb_update", .attrs = {{"weight_decay", 0.01}}, .lr = 0.1, .step = 3}, got);
  for (size_t g = 0; g < got.size(); ++g) {
    const auto p = old[g][0].to_doubles(), x = old[g][1].to_doubles(), m = old[g][2].to_doubles(),
               v = old[g][3].to_doubles();
    std::vector<double> u(p.size()), want(p.size());
    double square = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const double mh = (0.9 * m[i] + 0.1 * x[i]) / (1 - std::pow(0.9, 3));
      const double vh = (0.999 * v[i] + 0.001 * x[i] * x[i]) / (1 - std::pow(0.999, 3));
      u[i] = mh / (std::sqrt(vh) + 1e-6) + 0.01 * p[i];
      square += u[i] * u[i];
    }
    const double ratio = norm2(old[g][0].data<float>()) / std::sqrt(square);
    for (size_t i = 0; i < p.size(); ++i) want[i] = p[i] - 0.1 * ratio * u[i];
    expect_near_all(got[g][0], want, 1e-6);
  }
}

TEST_P(UpdateAtLevel, LarsFollowsItsFormula) {
  std::vector<Group> got = vectors(1);
  const std::vector<Group> old = clones(got);
  run_update({.op = "lars_update",
              .attrs = {{"momentum", 0.9}, {"weight_decay", 0.01}, {"eta", 0.02}},
              .grad_scale = 0.5f},
             got);
  for (size_t g = 0; g < got.size(); ++g) {
    const auto p = old[g][0].to_doubles(), x = old[g][1].to_doubles(), v = old[g][2].to_doubles();
    const double np = norm2(old[g][0].data<float>()), ng = 0.5 * norm2(old[g][1].data<float>());
    const double lambda = 0.02 * np / (ng + 0.01 * np + 1e-8);
    std::vector<double> want(p.size());
    for (size_t i = 0; i < p.size(); ++i)
      want[i] = p[i] - (0.9 * v[i] + 0.125 * lambda * (0.5 * x[i] + 0.01 * p[i]));
    expect_near_all(got[g][0], want, 1e-6);
  }
}

/// Row and column means of g^2 of each matrix in double; wide and narrow matrices use different kernels.
TEST_P(UpdateAtLevel, AdafactorFollowsItsFormula) {
  std::vector<Group> got = matrices(2);
  const std::vector<Group> old = clones(got);
  run_update(
      {.op = "adafactor_update", .attrs = {{"weight_decay", 0.01}}, .lr = 0.1, .step = 3, .grad_scale = 0.5f},
      got);
  const double take = std::pow(3.0, -0.8), eps = 1.1920928955078125e-7;
  for (size_t g = 0; g < got.size(); ++g) {
    const tensor::Dims d = old[g][0].dims();
    if (old[g][0].elements() == 0) continue;
    const size_t rows = static_cast<size_t>(d[d.size() - 2]), cols = static_cast<size_t>(d.back());
    const auto p = old[g][0].to_doubles(), x = old[g][1].to_doubles(), r = old[g][2].to_doubles(),
               c = old[g][3].to_doubles();
    std::vector<double> u(p.size()), want(p.size()), row(r), col(c);
    for (size_t m = 0; m < p.size() / (rows * cols); ++m) {
      std::vector<double> row_mean(rows), col_mean(cols);
      for (size_t i = 0; i < rows * cols; ++i) {
        const double v = 0.25 * x[m * rows * cols + i] * x[m * rows * cols + i];
        row_mean[i / cols] += v / static_cast<double>(cols);
        col_mean[i % cols] += v / static_cast<double>(rows);
      }
      double mean = 0;
      for (size_t i = 0; i < rows; ++i) {
        row[m * rows + i] += take * (row_mean[i] - row[m * rows + i]);
        mean += row[m * rows + i] / static_cast<double>(rows);
      }
      for (size_t j = 0; j < cols; ++j) col[m * cols + j] += take * (col_mean[j] - col[m * cols + j]);
      for (size_t i = 0; i < rows * cols; ++i) {
        const double v = row[m * rows + i / cols] * col[m * cols + i % cols] / std::max(mean, eps);
        u[m * rows * cols + i] = 0.5 * x[m * rows * cols + i] / std::sqrt(std::max(v, eps * eps));
      }
    }
    double p2 = 0, u2 = 0;
    for (size_t i = 0; i < p.size(); ++i) p2 += p[i] * p[i], u2 += u[i] * u[i];
    const double n = static_cast<double>(p.size());
    const double alpha = std::max(1e-3, std::sqrt(p2 / n)) * 0.1 / std::max(1.0, std::sqrt(u2 / n));
    for (size_t i = 0; i < p.size(); ++i) want[i] = p[i] * (1 - 0.1 * 0.01) - alpha * u[i];
    expect_near_all(got[g][0], want, 2e-6);
    expect_near_all(got[g][2], row, 2e-6);
    expect_near_all(got[g][3], col, 2e-6);
  }
}

TEST_P(UpdateAtLevel, SameBitsAsTheBestLevel) {
  for (const std::string& op : kOps) {
    if (op == "muon_update") continue;  // its products are those of the dense kernels
    std::vector<Group> here = groups_for(op), best = clones(here);
    const Update update{.op = op, .attrs = {{"weight_decay", 0.01}}, .step = 3, .grad_scale = 0.9f};
    run_update(update, here);
    cpu::simd_unforce();
    run_update(update, best);
    cpu::simd_force(GetParam());
    EXPECT_EQ(difference(here, best), "") << op;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, UpdateAtLevel, ::testing::ValuesIn(cpu::simd_levels()),
                         [](const auto& level) { return level.param.name; });

TEST(Optimizers, OneNodeIsManyNodes) {
  for (const std::string& op : kOps) {
    const std::vector<Group> start = groups_for(op);
    const Update update{.op = op, .attrs = {{"weight_decay", 0.01}}, .step = 2, .grad_scale = 0.9f};
    std::vector<Group> together = clones(start), alone;
    run_update(update, together);
    for (const Group& g : start) {
      std::vector<Group> one = clones({g});
      run_update(update, one);
      alone.push_back(one[0]);
    }
    EXPECT_EQ(difference(together, alone), "") << op;
  }
}

TEST(Optimizers, ThreadsAndPlaceDoNotMatter) {
  for (const std::string& op : kOps) {
    std::vector<Group> a = groups_for(op), b = clones(a), c = clones(a);
    Update update{.op = op, .step = 2};
    update.threads = 1;
    run_update(update, a);
    update.threads = 4;
    run_update(update, b);
    update.in_place = false;
    run_update(update, c);
    EXPECT_EQ(difference(a, b), "") << op + " threads";
    EXPECT_EQ(difference(a, c), "") << op + " in place";
  }
}

TEST(Optimizers, ASkippedUpdateChangesNothing) {
  for (const std::string& op : kOps) {
    std::vector<Group> start = groups_for(op);
    start[0][1].mutable_data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    for (bool in_place : {true, false}) {
      std::vector<Group> got = clones(start);
      run_update({.op = op,
                  .step = 2,
                  .grad_scale = std::numeric_limits<float>::quiet_NaN(),
                  .skip = true,
                  .in_place = in_place},
                 got);
      EXPECT_EQ(difference(got, start), "") << op;
    }
  }
}

TEST(Optimizers, NoParameters) {
  for (const std::string& op : kOps) {
    std::vector<Group> none;
    EXPECT_NO_THROW(run_update({.op = op}, none)) << op;
    EXPECT_TRUE(none.empty()) << op;
  }
}

Group doubles(const std::vector<double>& p, const std::vector<double>& g, size_t states) {
  const int64_t n = static_cast<int64_t>(p.size());
  Group out{Tensor::from<double>({n}, std::span<const double>(p)),
            Tensor::from<double>({n}, std::span<const double>(g))};
  for (size_t s = 0; s < states; ++s) out.push_back(Tensor::zeros(DType::f64, {n}));
  return out;
}

TEST(Contract, AdamWVector) {
  std::vector<Group> groups{doubles({1}, {0}, 2)};
  const double grads[] = {0.5, -0.25, 0.1}, want[] = {0.99899000002, 0.9987136730870783, 0.9983884423935261};
  for (int64_t t = 1; t <= 3; ++t) {
    groups[0][1].mutable_data<double>()[0] = grads[t - 1];
    run_update({.op = "adam_update", .attrs = {{"weight_decay", 0.01}}, .lr = 1e-3, .step = t}, groups);
    EXPECT_NEAR(groups[0][0].to_doubles()[0], want[t - 1], 1e-14) << t;
  }
}

TEST(Contract, LambVector) {
  std::vector<Group> groups{doubles({3, 4}, {.06, .08}, 2)};
  run_update({.op = "lamb_update", .attrs = {{"weight_decay", 0.01}}, .lr = 0.01}, groups);
  const std::vector<double> p = groups[0][0].to_doubles();
  EXPECT_NEAR(p[0], 2.96481594, 5e-9);
  EXPECT_NEAR(p[1], 3.96447420, 5e-9);
}

TEST(Contract, TrustRatioOfAZeroParameterIsOne) {
  for (const char* op : {"lamb_update", "lars_update"}) {
    std::vector<Group> groups{doubles({0, 0}, {1, 1}, update_layout(op).states)};
    run_update({.op = op, .lr = 0.5}, groups);
    EXPECT_NEAR(groups[0][0].to_doubles()[0], -0.5, 1e-5) << op;
  }
}

/// block_squares of tensors that are cut as norm_blocks() says.
Tensor blocks_of(const std::vector<Tensor>& x, int threads) {
  std::vector<int64_t> dims, blocks;
  for (const Tensor& t : x) {
    const NormBlocks b = norm_blocks(t.dims());
    dims.push_back(b.dim);
    blocks.push_back(b.blocks);
  }
  base::ThreadPool pool(threads);
  return evaluate(table().need("block_squares"), {{"dims", dims}, {"blocks", blocks}}, x, 1, pool)[0];
}

float norm_of(const std::vector<Tensor>& x, int threads = 3) {
  std::vector<int64_t> counts;
  for (const Tensor& t : x) counts.push_back(norm_blocks(t.dims()).blocks);
  const std::vector<int64_t> first(x.size(), 0);
  return run("norm_of_squares", {blocks_of(x, threads)},
             {{"parts", std::vector<int64_t>{1}}, {"counts", counts}, {"operands", first}})[0]
      .data<float>()[0];
}

TEST(Norm, IsTheRootOfTheSumInDouble) {
  std::vector<Tensor> grads;
  double squares = 0;
  std::vector<tensor::Dims> shapes{{3, 64}, {48, 5, 3}, {7, 5, 32, 3}, {129, 1024}, {}};
  for (int64_t n : kSizes) shapes.push_back({n});
  for (const tensor::Dims& dims : shapes) {
    grads.push_back(random_tensor(DType::f32, dims, -3, 3, static_cast<uint64_t>(grads.size())));
    for (float v : grads.back().data<float>()) squares += static_cast<double>(v) * static_cast<double>(v);
  }
  const float got = norm_of(grads);
  EXPECT_FLOAT_EQ(got, static_cast<float>(std::sqrt(squares)));
  EXPECT_EQ(got, norm_of(grads, 1));
  // Squares such as (3e30)^2 overflow f32, but the sum does not.
  EXPECT_FLOAT_EQ(norm_of({Tensor::from<float>({2}, {3e30f, 4e30f})}), 5e30f);
}

/// Part `index` of `parts` of a tensor along a dimension.
Tensor part_of(const Tensor& x, int dim, int64_t parts, int64_t index) {
  tensor::Dims dims = x.dims();
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(dim) + 1; d < dims.size(); ++d) inner *= dims[d];
  const int64_t run = dims[static_cast<size_t>(dim)] / parts * inner, row = run * parts;
  dims[static_cast<size_t>(dim)] /= parts;
  std::vector<float> all;
  for (int64_t at = run * index; at < x.elements(); at += row)
    all.insert(all.end(), x.data<float>().begin() + at, x.data<float>().begin() + at + run);
  return Tensor::from<float>(dims, all);
}

TEST(Norm, PartsOfATensorGiveTheBitsOfTheWhole) {
  const std::vector<tensor::Dims> shapes{{48, 5, 3}, {129, 1024}, {512, 300}, {16}, {40, 64, 3, 3}};
  std::vector<Tensor> whole;
  for (const tensor::Dims& d : shapes) whole.push_back(random_tensor(DType::f32, d, -3, 3, whole.size()));
  for (const int64_t parts : {2, 4, 8}) {
    std::vector<double> gathered;
    std::vector<int64_t> counts, dims;
    for (const Tensor& t : whole) {
      counts.push_back(norm_blocks(t.dims()).blocks / parts);
      dims.push_back(norm_blocks(t.dims()).dim);
    }
    for (int64_t r = 0; r < parts; ++r) {
      std::vector<Tensor> mine;
      for (size_t i = 0; i < whole.size(); ++i)
        mine.push_back(part_of(whole[i], static_cast<int>(dims[i]), parts, r));
      const Tensor sums = run("block_squares", mine, {{"dims", dims}, {"blocks", counts}})[0];
      gathered.insert(gathered.end(), sums.data<double>().begin(), sums.data<double>().end());
    }
    const auto size = static_cast<int64_t>(gathered.size());
    const Tensor norm = run("norm_of_squares", {Tensor::from<double>({size}, gathered)},
                            {{"parts", std::vector<int64_t>{parts}},
                             {"counts", counts},
                             {"operands", std::vector<int64_t>(whole.size(), 0)}})[0];
    EXPECT_EQ(norm.data<float>()[0], norm_of(whole)) << parts;
  }
}

TEST(Norm, FindsWhatIsNotFinite) {
  for (double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (DType type : {DType::f32, DType::f64}) {
      std::vector<Tensor> grads{random_tensor(type, {5}, -1, 1), random_tensor(type, {40000}, -1, 1)};
      EXPECT_TRUE(run("all_finite", grads)[0].data<bool>()[0]);
      tensor::visit_dtype(type, [&](auto zero) {
        using T = decltype(zero);
        if constexpr (sizeof(T) >= 4) grads[1].mutable_data<T>()[39999] = static_cast<T>(bad);
      });
      EXPECT_FALSE(run("all_finite", grads)[0].data<bool>()[0]);
      EXPECT_FALSE(std::isfinite(norm_of(grads)));
    }
  }
}

struct Clip {
  float norm, scale = 1, norm_limit = 1e30f, loss = 0, loss_limit = 1e30f;
};
std::vector<Tensor> clip(const Clip& c, const ir::Attrs& attrs) {
  std::vector<Tensor> in;
  for (float v : {c.norm, c.scale, c.norm_limit, c.loss, c.loss_limit}) in.push_back(Tensor::scalar(v));
  return run("clip_coefficient", in, attrs, 3);
}

TEST(Clip, CoefficientAndSkip) {
  const ir::Attrs one{{"max_norm", 1.0}};
  EXPECT_FLOAT_EQ(clip({.norm = 4}, one)[0].data<float>()[0], 1.0f / (4.0f + 1e-6f));
  EXPECT_EQ(clip({.norm = 0.5}, one)[0].data<float>()[0], 1.0f);
  EXPECT_EQ(clip({.norm = 4}, {})[0].data<float>()[0], 1.0f);
  // The loss was scaled by 1024, so the norm that counts is 4.
  const std::vector<Tensor> scaled = clip({.norm = 4096, .scale = 1.0f / 1024}, one);
  EXPECT_FLOAT_EQ(scaled[0].data<float>()[0], 1.0f / (4.0f + 1e-6f) / 1024);
  EXPECT_EQ(scaled[2].data<float>()[0], 4.0f);
  EXPECT_FALSE(scaled[1].data<bool>()[0]);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(clip({.norm = inf}, one)[1].data<bool>()[0]);
  EXPECT_TRUE(clip({.norm = nan}, one)[1].data<bool>()[0]);
  EXPECT_FALSE(clip({.norm = nan}, {{"skip_nonfinite", int64_t{0}}})[1].data<bool>()[0]);
  EXPECT_TRUE(clip({.norm = 3, .norm_limit = 2.5f}, one)[1].data<bool>()[0]);
  EXPECT_FALSE(clip({.norm = 3, .norm_limit = 3}, one)[1].data<bool>()[0]);
  EXPECT_TRUE(clip({.norm = 3, .loss = 7, .loss_limit = 6}, one)[1].data<bool>()[0]);
  EXPECT_TRUE(clip({.norm = 3, .loss = nan}, one)[1].data<bool>()[0]);
  // Limits are optional.
  EXPECT_FALSE(run("clip_coefficient", {Tensor::scalar(3.0f)}, one, 3)[1].data<bool>()[0]);
}

TEST(Averages, Ema) {
  const Tensor state = random_tensor(DType::f32, {40001}, -1, 1, 1),
               value = random_tensor(DType::f32, {40001}, -1, 1, 2);
  const Tensor ema = run("ema_update", {state, value}, {{"keep", 0.9}})[0];
  const Tensor kept = run("ema_update", {state, value, Tensor::scalar(true)}, {{"keep", 0.9}})[0];
  const float take = static_cast<float>(1 - 0.9);
  for (size_t i = 0; i < 40001; ++i) {
    const float s = state.data<float>()[i], v = value.data<float>()[i];
    ASSERT_EQ(ema.data<float>()[i], 0.9f * s + take * v);
  }
  EXPECT_TRUE(kept.same_as(state));
}

TEST(Trust, PartsThatExchangeSquaresAreUpdatedAsTheWhole) {
  constexpr int64_t kParts = 4;
  for (const std::string rule : {"lamb", "lars"}) {
    const std::string op = rule + "_update";
    const size_t states = update_layout(op).states;
    ir::Attrs attrs{{"weight_decay", 0.1}};
    if (rule == "lars") attrs.set("momentum", 0.9);
    std::vector<Tensor> whole{Tensor::scalar(0.125f), Tensor::scalar(int64_t{3}), Tensor(), Tensor()};
    for (size_t i = 0; i < 2 + states; ++i)
      whole.push_back(random_tensor(DType::f32, {64, 300}, i == 3 ? 0 : -1, 1, 7 + i));
    const std::vector<Tensor> want = run(op, whole, attrs, 1 + states);
    const int64_t blocks = norm_blocks({64, 300}).blocks / kParts;
    std::vector<std::vector<Tensor>> parts(kParts, {whole.begin(), whole.begin() + kUpdateScalars});
    std::vector<double> squares;
    attrs.set("blocks", std::vector<int64_t>{blocks});
    for (int64_t r = 0; r < kParts; ++r) {
      auto& part = parts[static_cast<size_t>(r)];
      for (size_t i = kUpdateScalars; i < whole.size(); ++i) part.push_back(part_of(whole[i], 0, kParts, r));
      ir::Attrs of_squares = attrs;
      const Tensor mine = run("trust_squares", part, of_squares.set("rule", rule))[0];
      squares.insert(squares.end(), mine.data<double>().begin(), mine.data<double>().end());
    }
    attrs.set("parts", kParts);
    for (int64_t r = 0; r < kParts; ++r) {
      auto& part = parts[static_cast<size_t>(r)];
      part.push_back(Tensor::from<double>({static_cast<int64_t>(squares.size())}, squares));
      const std::vector<Tensor> got = run(op, part, attrs, 1 + states);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(got[i].same_as(part_of(want[i], 0, kParts, r))) << op;
    }
  }
}

/// The sum T(lo, n) of comm/communicator.h.
float tree(const std::vector<float>& x, size_t lo, size_t n) {
  if (n == 1) return x[lo];
  size_t p = 1;
  while (p * 2 < n) p *= 2;
  return tree(x, lo, p) + tree(x, lo + p, n - p);
}

TEST(Tree, LevelsHoldSumsOfRunsOfTerms) {
  const int64_t elements = 20001;
  for (const size_t terms : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 13u}) {
    const auto levels = static_cast<size_t>(std::bit_width(terms));
    std::vector<Tensor> sums(levels,
                             random_tensor(DType::f32, {elements}, -1, 1, 99));  // what stands there is free
    std::vector<std::vector<float>> by_element(static_cast<size_t>(elements));
    for (size_t j = 0; j < terms; ++j) {
      // The first term holds negative zeros, whose sign an addition to zero would lose.
      const Tensor x = j == 0 ? Tensor::from<float>({elements}, std::vector<float>(size_t(elements), -0.0f))
                              : random_tensor(DType::f32, {elements}, -1, 1, j);
      std::vector<Tensor> in{Tensor::scalar(static_cast<int64_t>(j)), x};
      in.insert(in.end(), sums.begin(), sums.end());
      base::ThreadPool pool(3);
      sums = evaluate(table().need("tree_accumulate"), {}, in, levels, pool);
      for (size_t i = 0; i < by_element.size(); ++i) by_element[i].push_back(x.data<float>()[i]);
    }
    for (size_t i = 0; i < by_element.size(); i += 997) {
      // Sums the levels that hold something, from the lowest: later terms are in lower levels.
      std::optional<float> total;
      for (size_t level = 0; level < levels; ++level) {
        if ((terms >> level & 1u) == 0) continue;
        const float held = sums[level].data<float>()[i];
        total = total ? held + *total : held;
      }
      const float want = tree(by_element[i], 0, terms);
      ASSERT_EQ(std::bit_cast<uint32_t>(*total), std::bit_cast<uint32_t>(want)) << terms << " terms";
    }
  }
}

TEST(Averages, WeightsRampAndSkip) {
  const Tensor e = Tensor::from<float>({2}, {1, 2}), p = Tensor::from<float>({2}, {3, 6});
  const auto after = [&](int64_t step, bool skip) {
    return run("ema_weights", {Tensor::scalar(step), Tensor::scalar(skip), e, p},
               {{"keep", 0.999}, {"ramp", int64_t{1}}})[0];
  };
  EXPECT_NEAR(after(1, false).to_doubles()[0], 2.0 / 11 + 3 * 9.0 / 11, 1e-6);
  EXPECT_NEAR(after(1000000, false).to_doubles()[1], 2 * 0.999 + 6 * 0.001, 1e-6);
  EXPECT_TRUE(after(1, true).same_as(e));
}

TEST(Optimizers, RefuseWhatDoesNotFit) {
  std::vector<Group> bad{{Tensor::zeros(DType::f32, {3}), Tensor::zeros(DType::f32, {4})}};
  EXPECT_THROW(run_update({.op = "sgd_update"}, bad), base::Error);
  std::vector<Group> vector{
      {Tensor::zeros(DType::f32, {3}), Tensor::zeros(DType::f32, {3}), Tensor::zeros(DType::f32, {3})}};
  EXPECT_THROW(run_update({.op = "muon_update"}, vector), base::Error);
  EXPECT_THROW(run_update({.op = "adam_update"}, vector), base::Error);
}

}  // namespace
}  // namespace trireme::ops::testing
