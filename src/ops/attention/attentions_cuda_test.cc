// Attention, its gradients and rotary embedding on the device against the CPU's results.
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

class AttentionCuda : public ::testing::TestWithParam<DType> {
 protected:
  Tensor random(const Dims& dims, uint32_t seed) const {
    return tests::rounded_to(GetParam(), tests::random_tensor(dims, seed));
  }
  void expect_as_cpu(tests::DeviceTrial trial) const {
    trial.relative = trial.absolute = 2 * tests::half_tolerance(GetParam());
    tests::expect_as_cpu(trial);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, AttentionCuda, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& at) { return std::string(name_of(at.param)); });

/// A mask of kept keys in which every query keeps its first key.
Tensor kept(const Dims& dims) {
  Tensor t = Tensor::empty(DType::boolean, dims);
  int64_t i = 0;
  for (bool& v : t.mutable_data<bool>()) v = i % dims.back() == 0 || i % 3 != 1, ++i;
  return t;
}

TEST_P(AttentionCuda, ChannelsLastWithGroupsMasksAndCausality) {
  // 70 queries fill three tiles, the last one partly.
  for (const int64_t dim : {5, 64, 136}) {
    const Tensor q = random({2, 70, 4, dim}, 1), k = random({2, 45, 2, dim}, 2),
                 v = random({2, 45, 2, 24}, 3);
    expect_as_cpu({.op = "attention_bsnd", .in = {q, k, v}, .out_count = 2});
    if (dim != 5) continue;
    expect_as_cpu({.op = "attention_bsnd", .in = {q, k, v, kept({2, 1, 70, 45})}, .out_count = 2});
    expect_as_cpu({.op = "attention_bsnd", .in = {q, k, v, random({1, 4, 70, 45}, 4)}});
  }
  const Tensor x = random({1, 37, 2, 16}, 5);
  expect_as_cpu(
      {.op = "attention_bsnd", .in = {x, x, x}, .attrs = {{"is_causal", int64_t{1}}}, .out_count = 2});
  Tensor padding = Tensor::from<int64_t>({1, 37}, std::vector<int64_t>(37, 1));
  for (size_t i = 30; i < 37; ++i) padding.mutable_data<int64_t>()[i] = 0;
  expect_as_cpu({.op = "attention_bsnd", .in = {x, x, x, padding}, .attrs = {{"scale", 0.3}}});
}

TEST_P(AttentionCuda, TilesOfAllHeadSizes) {
  // Tiles have 64 queries and keys, or 32 or 16 of long heads: full tiles, one row more, and a single row.
  const ir::Attrs causal{{"is_causal", int64_t{1}}};
  for (const auto& [dim, tokens] : std::vector<std::array<int64_t, 2>>{
           {32, 65}, {48, 129}, {80, 64}, {128, 65}, {160, 33}, {256, 65}, {7, 1}}) {
    const Tensor q = random({1, tokens, 2, dim}, 1), k = random({1, tokens, 1, dim}, 2),
                 v = random({1, tokens, 1, dim}, 3);
    expect_as_cpu({.op = "attention_bsnd", .in = {q, k, v}, .attrs = causal, .out_count = 2});
    base::ThreadPool pool(1);
    const auto y = evaluate(table().need("attention_bsnd"), causal, {q, k, v}, 2, pool);
    expect_as_cpu({.op = "attention_bsnd_grad",
                   .in = {q, k, v, y[0], y[1], random({1, tokens, 2, dim}, 4)},
                   .attrs = causal,
                   .out_count = 3});
  }
}

TEST_P(AttentionCuda, GradientsWithNarrowerValues) {
  const Tensor q = random({2, 70, 2, 40}, 1), k = random({2, 90, 2, 40}, 2), v = random({2, 90, 2, 20}, 3);
  base::ThreadPool pool(1);
  const auto y = evaluate(table().need("attention_bsnd"), {}, {q, k, v}, 2, pool);
  expect_as_cpu(
      {.op = "attention_bsnd_grad", .in = {q, k, v, y[0], y[1], random({2, 70, 2, 20}, 4)}, .out_count = 3});
}

TEST_P(AttentionCuda, PackedProjections) {
  for (const int64_t kv : {0, 2}) {
    const int64_t parts = kv == 0 ? 12 : 8;
    expect_as_cpu({.op = "attention_qkv",
                   .in = {random({2, 33, parts * 8}, 1)},
                   .attrs = {{"heads", int64_t{4}}, {"kv_heads", kv}, {"is_causal", int64_t{1}}},
                   .out_count = 2});
  }
}

TEST_P(AttentionCuda, Gradients) {
  for (const int64_t causal : {0, 1}) {
    const ir::Attrs attrs{{"is_causal", causal}};
    const Tensor q = random({2, 40, 4, 24}, 1), k = random({2, 40, 2, 24}, 2), v = random({2, 40, 2, 24}, 3);
    base::ThreadPool pool(1);
    const auto y = evaluate(table().need("attention_bsnd"), attrs, {q, k, v}, 2, pool);
    expect_as_cpu({.op = "attention_bsnd_grad",
                   .in = {q, k, v, y[0], y[1], random({2, 40, 4, 24}, 4)},
                   .attrs = attrs,
                   .out_count = 3});
    const ir::Attrs packed{{"is_causal", causal}, {"heads", int64_t{4}}, {"kv_heads", int64_t{2}}};
    const Tensor qkv = random({1, 35, 8 * 16}, 5);
    const auto z = evaluate(table().need("attention_qkv"), packed, {qkv}, 2, pool);
    expect_as_cpu(
        {.op = "attention_qkv_grad", .in = {qkv, z[0], z[1], random({1, 35, 4 * 16}, 6)}, .attrs = packed});
  }
}

TEST_P(AttentionCuda, WindowsAndCaps) {
  const Tensor q = random({2, 80, 4, 24}, 1), k = random({2, 80, 2, 24}, 2), v = random({2, 80, 2, 24}, 3);
  base::ThreadPool pool(1);
  for (const int64_t left : {0, 5, 64}) {
    const ir::Attrs attrs{{"is_causal", int64_t{1}}, {"left_window_size", left}};
    expect_as_cpu({.op = "attention_bsnd", .in = {q, k, v}, .attrs = attrs, .out_count = 2});
    ir::Attrs capped = attrs;
    capped.set("softcap", 0.8);
    expect_as_cpu({.op = "attention_bsnd", .in = {q, k, v}, .attrs = capped, .out_count = 2});
    const auto y = evaluate(table().need("attention_bsnd"), attrs, {q, k, v}, 2, pool);
    expect_as_cpu({.op = "attention_bsnd_grad",
                   .in = {q, k, v, y[0], y[1], random({2, 80, 4, 24}, 4)},
                   .attrs = attrs,
                   .out_count = 3});
  }
}

TEST_P(AttentionCuda, GradientsUnderAMask) {
  const Tensor q = random({1, 20, 2, 8}, 1), k = random({1, 50, 2, 8}, 2), v = random({1, 50, 2, 8}, 3);
  const Tensor mask = kept({1, 1, 20, 50});
  base::ThreadPool pool(1);
  const auto y = evaluate(table().need("attention_bsnd"), {}, {q, k, v, mask}, 2, pool);
  expect_as_cpu({.op = "attention_bsnd_grad",
                 .in = {q, k, v, y[0], y[1], random({1, 20, 2, 8}, 4), mask},
                 .out_count = 3});
}

TEST_P(AttentionCuda, OfOnnxWithACacheWindowsAndCaps) {
  const Tensor q = random({2, 4, 6, 16}, 1), k = random({2, 2, 6, 16}, 2), v = random({2, 2, 6, 8}, 3);
  expect_as_cpu({.op = "attention", .in = {q, k, v}, .out_count = 3});
  const Tensor past_k = random({2, 2, 9, 16}, 4), past_v = random({2, 2, 9, 8}, 5);
  for (const size_t results : {1u, 3u}) {
    expect_as_cpu({.op = "attention",
                   .in = {q, k, v, Tensor(), past_k, past_v},
                   .attrs = {{"is_causal", int64_t{1}}, {"softcap", 3.0}},
                   .out_count = results});
  }
  expect_as_cpu({.op = "attention",
                 .in = {q, k, v, random({6, 6}, 6)},
                 .attrs = {{"left_window_size", int64_t{2}}, {"right_window_size", int64_t{1}}}});
  const Tensor lengths = Tensor::from<int64_t>({2}, {6, 4});
  expect_as_cpu({.op = "attention", .in = {q, k, v, Tensor(), Tensor(), Tensor(), lengths}});
  expect_as_cpu({.op = "attention",
                 .in = {random({2, 5, 4 * 8}, 1), random({2, 7, 2 * 8}, 2), random({2, 7, 2 * 8}, 3)},
                 .attrs = {{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}}});
}

TEST_P(AttentionCuda, ValuesBehindTheLengthAreNotRead) {
  const Tensor q = random({2, 2, 3, 16}, 1), k = random({2, 2, 8, 16}, 2), v = random({2, 2, 8, 16}, 3);
  std::vector<double> values = v.to_doubles();
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t row = i / 16 % 8, sequence = i / (2 * 8 * 16);
    if (row >= (sequence == 0 ? 3u : 5u)) values[i] = std::numeric_limits<double>::quiet_NaN();
  }
  std::vector<float> floats(values.begin(), values.end());
  const Tensor dirty = tests::rounded_to(GetParam(), Tensor::from<float>({2, 2, 8, 16}, floats));
  const Tensor lengths = Tensor::from<int64_t>({2}, {3, 5});
  const auto on = tests::device_or_skip();
  if (on == nullptr) return;
  const auto run = [&](const Tensor& of) {
    return tests::run_on(*on,
                         {.op = "attention", .in = {q, k, of, Tensor(), Tensor(), Tensor(), lengths}})[0];
  };
  EXPECT_TRUE(run(dirty).same_as(run(v)));
}

TEST_P(AttentionCuda, RotaryEmbedding) {
  for (const int64_t interleaved : {0, 1}) {
    const ir::Attrs attrs{{"interleaved", interleaved}};
    expect_as_cpu({.op = "rotary_embedding",
                   .in = {random({2, 3, 5, 8}, 1), random({2, 5, 4}, 2), random({2, 5, 4}, 3)},
                   .attrs = attrs});
    // f32 angles with 16-bit channels.
    expect_as_cpu({.op = "rotary_embedding",
                   .in = {random({2, 3, 5, 8}, 1), tests::random_tensor({2, 5, 4}, 2),
                          tests::random_tensor({2, 5, 4}, 3)},
                   .attrs = attrs});
    ir::Attrs partial{
        {"interleaved", interleaved}, {"num_heads", int64_t{3}}, {"rotary_embedding_dim", int64_t{4}}};
    expect_as_cpu({.op = "rotary_embedding",
                   .in = {random({2, 5, 24}, 1), random({9, 2}, 2), random({9, 2}, 3),
                          Tensor::from<int64_t>({2, 5}, {0, 1, 2, 3, 4, 8, 7, 6, 5, 20})},
                   .attrs = partial});
  }
}

}  // namespace
}  // namespace trireme::ops
