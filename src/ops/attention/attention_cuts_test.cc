// Every legal cut of attention against the whole, and the cuts that must not exist.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::values;
using tests::expect_cuts;

struct Sizes {
  int64_t heads, kv_heads;
  bool causal;
};

TEST(AttentionCut, HeadsBatchAndQueries) {
  for (const auto& [s, want] : {std::pair{Sizes{4, 4, false}, "bsh"},
                                {Sizes{4, 2, true}, "bh"},
                                {Sizes{4, 1, false}, "bsbsg"},
                                {Sizes{4, 1, true}, "bbg"}}) {
    const Tensor q = values({2, 4, s.heads, 3}, 1), k = values({2, 6, s.kv_heads, 3}, 2);
    const Tensor v = values({2, 6, s.kv_heads, 5}, 3), mask = values({2, s.heads, 4, 6}, 4);
    const ir::Attrs attrs{{"is_causal", int64_t{s.causal}}, {"kv_heads", s.kv_heads}};
    EXPECT_EQ(expect_cuts({.op = "attention_bsnd", .in = {q, k, v}, .attrs = attrs, .results = 2}), want);
    EXPECT_EQ(expect_cuts({.op = "attention_bsnd", .in = {q, k, v, mask}, .attrs = attrs, .results = 2}),
              want);
    EXPECT_EQ(expect_cuts({.op = "attention_bsnd",
                           .in = {q, k, v, Tensor(), values({s.heads}, 6)},
                           .attrs = attrs,
                           .results = 2}),
              want);
    const auto y = testing::run("attention_bsnd", {q, k, v, mask}, attrs, 2);
    const Tensor dy = values({2, 4, s.heads, 5}, 5);
    EXPECT_EQ(expect_cuts({.op = "attention_bsnd_grad",
                           .in = {q, k, v, y[0], y[1], dy, mask},
                           .attrs = attrs,
                           .results = 3}),
              want);
  }
}

TEST(AttentionCut, PackedHeadsAreThreeSections) {
  const Tensor qkv = values({2, 5, 3 * 4 * 2}, 1), mask = values({2, 1, 5, 5}, 2), dy = values({2, 5, 8}, 3);
  const ir::Attrs attrs{{"heads", int64_t{4}}, {"kv_heads", int64_t{4}}, {"is_causal", int64_t{1}}};
  const auto y = testing::run("attention_qkv", {qkv, mask}, attrs, 2);
  for (int parts : {2, 4}) {
    const std::string want = parts == 2 ? "bh" : "h";
    EXPECT_EQ(
        expect_cuts({.op = "attention_qkv", .in = {qkv, mask}, .attrs = attrs, .results = 2, .parts = parts}),
        want);
    EXPECT_EQ(
        expect_cuts(
            {.op = "attention_qkv_grad", .in = {qkv, y[0], y[1], dy, mask}, .attrs = attrs, .parts = parts}),
        want);
  }
  // With fewer key heads the sections are not equal, so only the batch is cut.
  const ir::Attrs grouped{{"heads", int64_t{4}}, {"kv_heads", int64_t{2}}};
  EXPECT_EQ(expect_cuts({.op = "attention_qkv", .in = {values({2, 5, 16}, 4)}, .attrs = grouped}), "b");
}

TEST(AttentionCut, GeneralFormAndRotations) {
  const Tensor q = values({2, 5, 4 * 6}, 1), k = values({2, 7, 2 * 6}, 2), v = values({2, 7, 2 * 6}, 3);
  const ir::Attrs flat{{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}};
  EXPECT_EQ(expect_cuts({.op = "attention", .in = {q, k, v}, .attrs = flat}), "bh");
  const Tensor q4 = values({2, 4, 6, 3}, 1), k4 = values({2, 1, 6, 3}, 2), past = values({2, 1, 2, 3}, 3);
  EXPECT_EQ(expect_cuts({.op = "attention", .in = {q4, k4, k4, {}, past, past}, .results = 3}), "bsbgs");
  const Tensor x = values({2, 6, 4 * 6}, 5), cos = values({10, 3}, 6), sin = values({10, 3}, 7);
  Tensor at = Tensor::zeros(tensor::DType::i64, {2, 6});
  for (size_t i = 0; i < 12; ++i) at.mutable_data<int64_t>()[i] = int64_t(i * 5 % 10);
  EXPECT_EQ(
      expect_cuts({.op = "rotary_embedding", .in = {x, cos, sin, at}, .attrs = {{"num_heads", int64_t{4}}}}),
      "bsh");
  const Tensor x4 = values({2, 4, 6, 6}, 8);
  EXPECT_EQ(expect_cuts({.op = "rotary_embedding", .in = {x4, values({2, 6, 3}, 1), values({2, 6, 3}, 2)}}),
            "bhs");
}

TEST(AttentionCut, PagesByKeyHeads) {
  const auto floats = [](tensor::Dims dims, uint64_t seed) {
    return testing::random_tensor(DType::f32, std::move(dims), -1, 1, seed);
  };
  const auto ints = [](tensor::Dims dims, std::vector<int32_t> v) {
    return Tensor::from<int32_t>(std::move(dims), v);
  };
  // Two sequences of 5 and 3 tokens, of which 2 and 1 are new.
  for (const auto& [heads, kv_heads, want] : {std::tuple{4, 2, "h"}, {4, 4, "h"}, {4, 1, "g"}}) {
    const Tensor q = floats({1, 3, heads * 5}, 1);
    const Tensor keys = floats({4, kv_heads, 3, 5}, 2), values = floats({4, kv_heads, 3, 5}, 3);
    EXPECT_EQ(expect_cuts({.op = "paged_attention",
                           .in = {q, keys, values, ints({2, 2}, {3, 1, 0, 2}), ints({2}, {5, 3}),
                                  ints({3}, {0, 2, 3})}}),
              want);
  }
  const Tensor fresh = floats({1, 3, 2 * 5}, 4);
  EXPECT_EQ(expect_cuts({.op = "kv_append",
                         .in = {fresh, fresh, floats({4, 2, 3, 5}, 5), floats({4, 2, 3, 5}, 6),
                                ints({3}, {10, -1, 2})},
                         .results = 2}),
            "h");
}

}  // namespace
}  // namespace trireme::ops
