// Gradients of all forms of attention against finite differences; the fused backward kernel against the
// reference.
#include <limits>

#include "ops/test_grad.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using testing::expect_gradient;

Tensor f64(Dims dims, uint64_t seed) {
  return testing::random_tensor(DType::f64, std::move(dims), -1, 1, seed);
}

/// A mask that hides key 1 from every query, and every key from query 2.
Tensor hiding_mask(int64_t queries, int64_t keys) {
  Tensor mask = Tensor::zeros(DType::f64, {queries, keys});
  const auto m = mask.mutable_data<double>();
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t j = 0; j < keys; ++j) {
      const bool hidden = j == 1 || i == 2;
      m[static_cast<size_t>(i * keys + j)] =
          hidden ? -std::numeric_limits<double>::infinity() : 0.1 * double(i);
    }
  }
  return mask;
}

TEST(AttentionGradient, Bsnd) {
  for (const bool causal : {false, true}) {
    const ir::Attrs attrs{{"is_causal", int64_t{causal}}};
    expect_gradient({.op = "attention_bsnd",
                     .in = {f64({2, 5, 3, 4}, 1), f64({2, 5, 3, 4}, 2), f64({2, 5, 3, 2}, 3)},
                     .attrs = attrs});
    expect_gradient({.op = "attention_bsnd",
                     .in = {f64({1, 4, 4, 3}, 1), f64({1, 6, 2, 3}, 2), f64({1, 6, 2, 3}, 3)},
                     .attrs = attrs});
    expect_gradient(
        {.op = "attention_bsnd",
         .in = {f64({1, 4, 2, 3}, 1), f64({1, 4, 1, 3}, 2), f64({1, 4, 1, 3}, 3), hiding_mask(4, 4)},
         .attrs = attrs,
         .constant = {3}});
  }
}

TEST(AttentionGradient, Sinks) {
  for (const bool causal : {false, true}) {
    const ir::Attrs attrs{{"is_causal", int64_t{causal}}, {"left_window_size", causal ? int64_t{2} : -1}};
    expect_gradient(
        {.op = "attention_bsnd",
         .in = {f64({2, 5, 4, 3}, 1), f64({2, 5, 2, 3}, 2), f64({2, 5, 2, 3}, 3), Tensor(), f64({4}, 4)},
         .attrs = attrs});
  }
}

TEST(AttentionGradient, WindowsAndCaps) {
  for (const int64_t left : {-1, 0, 2}) {
    for (const double cap : {0.0, 0.7}) {
      const ir::Attrs attrs{
          {"is_causal", int64_t{left != 0}}, {"left_window_size", left}, {"softcap", cap}, {"scale", 0.9}};
      expect_gradient({.op = "attention_bsnd",
                       .in = {f64({1, 6, 4, 3}, 1), f64({1, 6, 2, 3}, 2), f64({1, 6, 2, 3}, 3)},
                       .attrs = attrs});
      ir::Attrs packed = attrs;
      packed.set("heads", int64_t{2});
      expect_gradient({.op = "attention_qkv", .in = {f64({2, 5, 18}, 1)}, .attrs = packed});
    }
  }
  expect_gradient(
      {.op = "attention_bsnd",
       .in = {f64({1, 4, 2, 3}, 1), f64({1, 4, 1, 3}, 2), f64({1, 4, 1, 3}, 3), hiding_mask(4, 4)},
       .attrs = {{"left_window_size", int64_t{1}}, {"softcap", 0.5}},
       .constant = {3}});
}

TEST(AttentionGradient, TrainedMask) {
  const Dims mask{1, 2, 4, 5};
  expect_gradient({.op = "attention_bsnd",
                   .in = {f64({2, 4, 2, 3}, 1), f64({2, 5, 1, 3}, 2), f64({2, 5, 1, 3}, 3), f64(mask, 4)}});
}

TEST(AttentionGradient, Qkv) {
  for (const bool causal : {false, true}) {
    expect_gradient({.op = "attention_qkv",
                     .in = {f64({2, 5, 18}, 1)},
                     .attrs = {{"heads", int64_t{2}}, {"is_causal", int64_t{causal}}}});
    expect_gradient(
        {.op = "attention_qkv",
         .in = {f64({1, 5, 24}, 1)},
         .attrs = {{"heads", int64_t{4}}, {"kv_heads", int64_t{2}}, {"is_causal", int64_t{causal}}}});
  }
}

TEST(AttentionGradient, OnnxForms) {
  const ir::Attrs flat{{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}, {"is_causal", int64_t{1}}};
  expect_gradient(
      {.op = "attention", .in = {f64({2, 4, 12}, 1), f64({2, 4, 6}, 2), f64({2, 4, 6}, 3)}, .attrs = flat});
  expect_gradient({.op = "attention",
                   .in = {f64({1, 2, 4, 3}, 1), f64({1, 2, 5, 3}, 2), f64({1, 2, 5, 3}, 3), f64({4, 5}, 4)},
                   .attrs = {{"scale", 0.3}}});
}

TEST(AttentionGradient, RotaryEmbedding) {
  for (const bool interleaved : {false, true}) {
    const ir::Attrs attrs{{"interleaved", int64_t{interleaved}}, {"num_heads", int64_t{2}}};
    expect_gradient({.op = "rotary_embedding",
                     .in = {f64({2, 3, 8}, 1), f64({2, 3, 2}, 2), f64({2, 3, 2}, 3)},
                     .attrs = attrs,
                     .skip = {1, 2}});
  }
}

struct AttentionGradCase {
  int64_t batch, queries, keys, heads, kv_heads, dim, value_dim;
  bool causal, masked;
  int64_t left = -1;
  double cap = 0;
};

/// Runs every forward and every backward kernel; the latter get y and log-sum-exp of the reference.
TEST(AttentionGradient, FusedMatchesReference) {
  for (const AttentionGradCase& c : {AttentionGradCase{1, 3, 3, 1, 1, 4, 4, false, false},
                                     AttentionGradCase{2, 70, 70, 4, 2, 16, 16, true, false},
                                     AttentionGradCase{1, 65, 150, 2, 2, 33, 20, false, true},
                                     AttentionGradCase{1, 200, 200, 2, 1, 80, 80, true, true},
                                     AttentionGradCase{1, 40, 17, 3, 3, 64, 64, true, false},
                                     AttentionGradCase{1, 300, 300, 2, 1, 32, 32, true, false, 40},
                                     AttentionGradCase{2, 150, 150, 4, 2, 24, 24, true, true, 128, 2.5},
                                     AttentionGradCase{1, 70, 70, 1, 1, 16, 16, true, false, 0, 1.0},
                                     AttentionGradCase{1, 260, 260, 2, 2, 16, 8, false, false, 129},
                                     AttentionGradCase{1, 90, 90, 2, 2, 16, 8, true, false, -1, 0.8}}) {
    const ir::Attrs attrs{{"is_causal", int64_t{c.causal}}, {"left_window_size", c.left}, {"softcap", c.cap}};
    std::vector<Tensor> in{tests::random_tensor({c.batch, c.queries, c.heads, c.dim}, 1),
                           tests::random_tensor({c.batch, c.keys, c.kv_heads, c.dim}, 2),
                           tests::random_tensor({c.batch, c.keys, c.kv_heads, c.value_dim}, 3)};
    const Tensor mask = tests::random_tensor({c.batch, 1, c.queries, c.keys}, 4);
    if (c.masked) in.push_back(mask);
    const auto forward = tests::run_kernels("attention_bsnd", attrs, in, 2);
    ASSERT_EQ(forward.size(), 2u);
    for (size_t i : {0, 1})
      tests::expect_close(forward[0].out[i], forward[1].out[i].to_doubles(), 1e-4, 1e-5, "forward");
    const auto plain = tests::run_expanded("attention_bsnd", attrs, in, 2);
    for (size_t i : {0, 1})
      tests::expect_close(forward[0].out[i], plain[i].to_doubles(), 1e-4, 1e-5, "expanded");
    in.resize(3);
    in.insert(in.end(), {forward[1].out[0], forward[1].out[1],
                         tests::random_tensor({c.batch, c.queries, c.heads, c.value_dim}, 5)});
    if (c.masked) in.push_back(mask);
    const auto backward = tests::run_kernels("attention_bsnd_grad", attrs, in, 3);
    ASSERT_EQ(backward.size(), 2u);
    for (size_t i : {0, 1, 2})
      tests::expect_close(backward[0].out[i], backward[1].out[i].to_doubles(), 1e-3, 1e-4, "backward");
    if (!c.masked) continue;
    const auto with_mask = tests::run_kernels("attention_bsnd_mask_grad", attrs, in, 4);
    ASSERT_EQ(with_mask.size(), 1u);
    const auto expanded = tests::run_expanded("attention_bsnd_mask_grad", attrs, in, 4);
    for (size_t i : {0, 1, 2, 3})
      tests::expect_close(with_mask[0].out[i], expanded[i].to_doubles(), 1e-3, 1e-4, "trained mask");
  }
}

TEST(AttentionGradient, PackedFormsHaveTheSameKernels) {
  const ir::Attrs attrs{{"heads", int64_t{4}}, {"kv_heads", int64_t{2}}, {"is_causal", int64_t{1}}};
  const Tensor qkv = tests::random_tensor({2, 75, 8 * 24}, 1);
  const auto forward = tests::run_kernels("attention_qkv", attrs, {qkv}, 2);
  ASSERT_EQ(forward.size(), 2u);
  const auto plain = tests::run_expanded("attention_qkv", attrs, {qkv}, 2);
  for (const auto& r : forward) {
    for (size_t i : {0, 1}) tests::expect_close(r.out[i], plain[i].to_doubles(), 1e-4, 1e-5, r.kernel);
  }
  const Tensor dy = tests::random_tensor({2, 75, 4 * 24}, 2);
  const auto backward =
      tests::run_kernels("attention_qkv_grad", attrs, {qkv, forward[1].out[0], forward[1].out[1], dy});
  ASSERT_EQ(backward.size(), 2u);
  tests::expect_close(backward[0].out[0], backward[1].out[0].to_doubles(), 1e-3, 1e-4, "backward");
  const Tensor mask = tests::random_tensor({1, 4, 75, 75}, 3);
  const std::vector<Tensor> in{qkv, forward[1].out[0], forward[1].out[1], dy, mask};
  const auto with_mask = tests::run_kernels("attention_qkv_mask_grad", attrs, in, 2);
  ASSERT_EQ(with_mask.size(), 1u);
  const auto expanded = tests::run_expanded("attention_qkv_mask_grad", attrs, in, 2);
  for (size_t i : {0, 1})
    tests::expect_close(with_mask[0].out[i], expanded[i].to_doubles(), 1e-3, 1e-4, "trained mask");
}

TEST(AttentionGradient, SameBitsForEveryTeam) {
  for (const int64_t left : {-1, 70}) {
    const ir::Attrs attrs{{"heads", int64_t{3}}, {"is_causal", int64_t{1}}, {"left_window_size", left}};
    const Tensor qkv = tests::random_tensor({2, 140, 9 * 40}, 1),
                 dy = tests::random_tensor({2, 140, 3 * 40}, 2);
    std::vector<Tensor> want;
    for (const int threads : {1, 2, 3, 4}) {
      const auto forward = tests::run_kernels("attention_qkv", attrs, {qkv}, 2, {0}, threads);
      const auto backward = tests::run_kernels(
          "attention_qkv_grad", attrs, {qkv, forward[0].out[0], forward[0].out[1], dy}, 1, {0}, threads);
      const std::vector<Tensor> got{forward[0].out[0], forward[0].out[1], backward[0].out[0]};
      if (want.empty()) want = got;
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].same_as(want[i])) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace trireme::ops
