// Draws on the device equal the CPU's; draws of tokens respect their cuts and follow their probabilities.
#include <map>
#include <set>

#include "tensor/sample_math.h"
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

/// A number in [0, 1) determined by index and seed.
float noise(int64_t i, uint32_t seed) {
  uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed * 40503u + 12345u;
  h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
  return static_cast<float>(h >> 8) * 0x1p-24f;
}

Tensor logits(int64_t rows, int64_t n, float spread, uint32_t seed) {
  Tensor x = Tensor::empty(DType::f32, {rows, n});
  for (int64_t i = 0; i < rows * n; ++i)
    x.mutable_data<float>()[static_cast<size_t>(i)] = spread * noise(i, seed);
  return x;
}

/// One row of settings per row of logits, then the counters (7, row).
std::vector<Tensor> operands(const Tensor& x, const std::vector<std::array<float, 4>>& settings) {
  std::vector<float> flat;
  std::vector<int64_t> counters;
  for (size_t r = 0; r < settings.size(); ++r) {
    flat.insert(flat.end(), settings[r].begin(), settings[r].end());
    counters.insert(counters.end(), {7, static_cast<int64_t>(r)});
  }
  const auto rows = static_cast<int64_t>(settings.size());
  return {x, Tensor::from<float>({rows, 4}, flat), Tensor::from<int64_t>({rows, 2}, counters)};
}

const std::vector<std::array<float, 4>> kSettings{
    {0, 0, 1, 0},     {1, 0, 1, 0},    {0.7f, 1, 1, 0},         {0.7f, 5, 1, 0}, {1.5f, 0, 0.4f, 0},
    {1, 20, 0.9f, 0}, {1, 0, 1, 0.2f}, {0.9f, 50, 0.8f, 0.05f}, {1, 3, 0, 1},    {1e-3f, 0, 0.5f, 0}};

TEST(SamplesCuda, TokensAsOnTheCpu) {
  for (const int64_t n : {1, 2, 17, 300, 5003}) {
    const Tensor x = logits(10, n, 6, 1);
    for (const DType type : {DType::f32, DType::f16, DType::bf16})
      tests::expect_as_cpu(
          {.op = "sample_tokens", .in = operands(tests::rounded_to(type, x), kSettings), .out_count = 2});
  }
  // Ties, and tokens that are excluded.
  Tensor x = logits(10, 700, 6, 2);
  for (size_t i = 0; i < 7000; ++i) {
    float& v = x.mutable_data<float>()[i];
    v = i % 3 == 0 ? -INFINITY : std::floor(v);
  }
  tests::expect_as_cpu({.op = "sample_tokens", .in = operands(x, kSettings), .out_count = 2});
}

/// Penalties for rows whose places in a table of four are 2, none, 0, 1, ...
std::vector<Tensor> penalized(const Tensor& x) {
  std::vector<Tensor> in = operands(x, kSettings);
  const int64_t n = x.dims()[1];
  Tensor settings = Tensor::empty(DType::f32, {10, 7}), seen = Tensor::empty(DType::i32, {4, n});
  for (size_t r = 0; r < 10; ++r) {
    float* row = settings.mutable_data<float>().data() + r * 7;
    std::copy_n(in[1].data<float>().data() + r * 4, 4, row);
    row[4] = r % 2 == 0 ? 1.3f : 1.0f, row[5] = 0.25f * static_cast<float>(r % 3),
    row[6] = r % 5 == 0 ? 0.7f : 0;
  }
  for (size_t i = 0; i < static_cast<size_t>(4 * n); ++i)
    seen.mutable_data<int32_t>()[i] = i % 3 == 0 ? static_cast<int32_t>(i % 8) : 0;
  const Tensor places = Tensor::from<int32_t>({10}, std::vector<int32_t>{2, -1, 0, 1, 3, -1, 2, 2, 0, 1});
  return {x, settings, in[2], seen, places};
}

TEST(SamplesCuda, PenaltiesAsOnTheCpu) {
  for (const int64_t n : {1, 33, 2001}) {
    Tensor x = logits(10, n, 6, 4);
    for (float& v : x.mutable_data<float>()) v -= 3;
    for (const DType type : {DType::f32, DType::f16, DType::bf16})
      tests::expect_as_cpu(
          {.op = "sample_tokens", .in = penalized(tests::rounded_to(type, x)), .out_count = 2});
  }
}

/// Rows of bits that allow all, none or some tokens, and biases on allowed and on excluded tokens.
std::vector<Tensor> edited(const Tensor& x) {
  const int64_t rows = x.dims()[0], n = x.dims()[1], words = (n + 31) / 32;
  Tensor allowed = Tensor::empty(DType::i32, {rows, words}), ids = Tensor::empty(DType::i32, {rows, 3});
  Tensor biases = Tensor::empty(DType::f32, {rows, 3});
  for (int64_t i = 0; i < rows * words; ++i) {
    const int32_t some = static_cast<int32_t>(static_cast<uint32_t>(i + 1) * 2654435761u);
    allowed.mutable_data<int32_t>()[static_cast<size_t>(i)] = i % 3 == 0 ? -1 : i % 3 == 1 ? some : 0;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const auto at = static_cast<size_t>(3 * r);
    int32_t* id = ids.mutable_data<int32_t>().data() + at;
    id[0] = static_cast<int32_t>(r % n), id[1] = -1, id[2] = n > 1 ? static_cast<int32_t>((r + 1) % n) : -1;
    float* bias = biases.mutable_data<float>().data() + at;
    bias[0] = 2.5f, bias[1] = 100, bias[2] = -0.5f;
  }
  return {x, allowed, ids, biases};
}

TEST(SamplesCuda, EditsAsOnTheCpu) {
  for (const int64_t n : {1, 31, 32, 65, 2001}) {
    const Tensor x = logits(7, n, 6, 5);
    for (const DType type : {DType::f32, DType::f16, DType::bf16})
      tests::expect_as_cpu({.op = "edit_logits", .in = edited(tests::rounded_to(type, x))});
  }
}

TEST(EditLogits, StrikesOutAndAdds) {
  base::ThreadPool pool(2);
  for (const int64_t n : {1, 31, 32, 65, 300}) {
    const Tensor x = logits(7, n, 6, 5);
    const std::vector<Tensor> in = edited(x);
    const Tensor y = ops::evaluate(ops::table().need("edit_logits"), {}, in, 1, pool)[0];
    for (int64_t r = 0; r < 7; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        const int32_t word = in[1].data<int32_t>()[static_cast<size_t>(r * ((n + 31) / 32) + i / 32)];
        float want = x.data<float>()[static_cast<size_t>(r * n + i)];
        for (int64_t b = 0; b < 3; ++b) {
          const auto at = static_cast<size_t>(3 * r + b);
          want += in[2].data<int32_t>()[at] == i ? in[3].data<float>()[at] : 0;
        }
        if ((static_cast<uint32_t>(word) >> i % 32 & 1) == 0) want = -INFINITY;
        ASSERT_EQ(y.data<float>()[static_cast<size_t>(r * n + i)], want) << r << ", " << i;
      }
    }
  }
  // Operands of wrong shapes are refused.
  std::vector<Tensor> in = edited(logits(7, 65, 6, 5));
  in[1] = Tensor::zeros(DType::i32, {7, 2});
  EXPECT_THROW(ops::evaluate(ops::table().need("edit_logits"), {}, in, 1, pool), base::Error);
}

TEST(SamplesCuda, CountsAndTakesTokens) {
  const auto i32 = [](std::vector<int32_t> v) {
    return Tensor::from<int32_t>({static_cast<int64_t>(v.size())}, v);
  };
  const auto i64 = [](std::vector<int64_t> v) {
    return Tensor::from<int64_t>({static_cast<int64_t>(v.size())}, v);
  };
  const Tensor seen = Tensor::zeros(DType::i32, {3, 5});
  tests::expect_as_cpu({.op = "count_tokens", .in = {seen, i32({2, -1, 0}), i64({4, 4, 1})}});
  tests::expect_as_cpu({.op = "take_tokens", .in = {i64({5, 6, 7, 8}), i64({40, 50}), i32({-1, 1, -1, 0})}});
  base::ThreadPool pool(1);
  const Tensor counted = ops::evaluate(ops::table().need("count_tokens"), {},
                                       {seen, i32({2, -1, 0}), i64({4, 4, 1})}, 1, pool)[0];
  std::vector<int32_t> want(15);
  want[14] = want[1] = 2;
  EXPECT_EQ(std::vector<int32_t>(counted.data<int32_t>().begin(), counted.data<int32_t>().end()), want);
  const Tensor taken = ops::evaluate(ops::table().need("take_tokens"), {},
                                     {i64({5, 6, 7, 8}), i64({40, 50}), i32({-1, 1, -1, 0})}, 1, pool)[0];
  EXPECT_EQ(std::vector<int64_t>(taken.data<int64_t>().begin(), taken.data<int64_t>().end()),
            (std::vector<int64_t>{5, 50, 7, 40}));
}

TEST(SampleTokens, WeightsAreExponentials) {
  for (const float temperature : {0.3f, 1.0f, 2.5f}) {
    for (int i = 0; i < 4000; ++i) {
      const float below = 0.006f * static_cast<float>(i) * temperature;
      const double want = std::exp(-static_cast<double>(below) / static_cast<double>(temperature)) * 0x1p31;
      const auto got =
          static_cast<double>(tensor::token_weight(-below, 0, tensor::weight_scale(temperature)));
      ASSERT_NEAR(got, want, 1 + 4e-6 * want) << below;  // rounding of the exponent: 2^-24 of up to 32
    }
  }
  EXPECT_EQ(tensor::token_weight(NAN, 0, 1), 0u);
  EXPECT_EQ(tensor::token_weight(-INFINITY, 0, 1), 0u);
  EXPECT_EQ(tensor::token_weight(3, 3, 1), uint64_t{1} << 31);
}

/// Draws many times from one row of logits with one setting.
std::map<int64_t, int> drawn(const Tensor& row, std::array<float, 4> setting, int64_t count) {
  const int64_t n = row.dims()[1];
  Tensor x = Tensor::empty(DType::f32, {count, n});
  for (int64_t r = 0; r < count; ++r)
    std::copy_n(row.data<float>().data(), n, x.mutable_data<float>().data() + r * n);
  base::ThreadPool pool(2);
  const auto in = operands(x, std::vector<std::array<float, 4>>(static_cast<size_t>(count), setting));
  const Tensor y = ops::evaluate(ops::table().need("sample_tokens"), {}, in, 1, pool)[0];
  std::map<int64_t, int> seen;
  for (int64_t id : y.data<int64_t>()) ++seen[id];
  return seen;
}

TEST(SampleTokens, CutsAndProbabilities) {
  // Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 in another order.
  const std::vector<float> p{0.0625f, 0.5f, 0.125f, 0.0625f, 0.25f};
  std::vector<float> x;
  for (float v : p) x.push_back(std::log(v));
  const Tensor row = Tensor::from<float>({1, 5}, x);
  const auto keys = [](const std::map<int64_t, int>& seen) {
    std::set<int64_t> out;
    for (const auto& [id, count] : seen) out.insert(id);
    return out;
  };
  const auto all = drawn(row, {1, 0, 1, 0}, 8000);
  for (size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(all.at(static_cast<int64_t>(i)) / 8000.0, static_cast<double>(p[i]), 0.02) << i;
  EXPECT_EQ(keys(drawn(row, {0, 0, 1, 0}, 50)), (std::set<int64_t>{1}));
  EXPECT_EQ(keys(drawn(row, {1, 2, 1, 0}, 400)), (std::set<int64_t>{1, 4}));
  EXPECT_EQ(keys(drawn(row, {1, 4, 1, 0}, 800)), (std::set<int64_t>{0, 1, 2, 4}));  // ties: the first
  EXPECT_EQ(keys(drawn(row, {1, 0, 0.7f, 0}, 400)), (std::set<int64_t>{1, 4}));
  EXPECT_EQ(keys(drawn(row, {1, 0, 0.8f, 0}, 400)), (std::set<int64_t>{1, 2, 4}));
  EXPECT_EQ(keys(drawn(row, {1, 2, 0.6f, 0}, 200)), (std::set<int64_t>{1}));  // its share is 2/3 after top_k
  EXPECT_EQ(keys(drawn(row, {1, 0, 1, 0.2f}, 800)), (std::set<int64_t>{1, 2, 4}));
  // If the first of equal tokens hold exactly the share, they suffice.
  const Tensor equals = Tensor::zeros(DType::f32, {1, 4});
  EXPECT_EQ(keys(drawn(equals, {1, 0, 0.5f, 0}, 200)), (std::set<int64_t>{0, 1}));
  tests::expect_as_cpu({.op = "sample_tokens",
                        .in = operands(Tensor::zeros(DType::f32, {30, 4}),
                                       std::vector<std::array<float, 4>>(30, {1, 0, 0.5f, 0})),
                        .out_count = 2});
  const auto two = drawn(row, {1, 2, 1, 0}, 8000);
  EXPECT_NEAR(two.at(1) / 8000.0, 2.0 / 3, 0.02);
  const auto hot = drawn(row, {2, 0, 1, 0}, 8000);
  EXPECT_NEAR(hot.at(1) / static_cast<double>(hot.at(0)), std::sqrt(8.0), 0.4);
}

TEST(SamplesCuda, Multinomial) {
  for (const int64_t classes : {1, 3, 300, 1025}) {
    const Tensor x = logits(3, classes, 4, 3);
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      tests::expect_as_cpu({.op = "multinomial",
                            .in = {tests::rounded_to(type, x)},
                            .attrs = {{"sample_size", int64_t{37}}, {"seed", 5.0}}});
    }
    tests::expect_as_cpu({.op = "multinomial", .in = {x}, .attrs = {{"dtype", int64_t{7}}}});
  }
}

}  // namespace
}  // namespace trireme::ops
