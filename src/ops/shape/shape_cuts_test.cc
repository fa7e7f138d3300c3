// Every legal cut of the ops that move elements, of reductions, lookups and elementwise ops, against the
// whole.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using testing::ints;
using testing::values;
using tests::expect_cuts;

TEST(ShapeCut, Views) {
  const auto reshaped = [](tensor::Dims from, std::vector<int64_t> to, int parts = 2) {
    return expect_cuts(
        {.op = "reshape", .in = {values(std::move(from)), ints(std::move(to))}, .parts = parts});
  };
  EXPECT_EQ(reshaped({2, 6, 12}, {2, 6, 4, 3}), "abc");
  EXPECT_EQ(reshaped({2, 6, 4, 3}, {2, 6, 12}), "abc");
  // Merged rows: cuts the batch, or the tokens in as many sections as there are samples.
  EXPECT_EQ(reshaped({2, 6, 4}, {12, 4}), "abb");
  EXPECT_EQ(reshaped({12, 4}, {2, 6, 4}), "aca");
  // Packed queries, keys and values are three sections.
  EXPECT_EQ(reshaped({4, 24}, {4, 3, 4, 2}, 4), "ab");
  EXPECT_EQ(reshaped({4, 3, 4, 2}, {4, 24}, 4), "ac");
  EXPECT_EQ(reshaped({1, 6, 4}, {6, 4}), "ab");
  EXPECT_EQ(expect_cuts({.op = "flatten", .in = {values({4, 3, 2})}}), "ac");
  EXPECT_EQ(expect_cuts({.op = "unsqueeze", .in = {values({4, 6}), ints({1})}}), "ac");
  EXPECT_EQ(expect_cuts({.op = "squeeze", .in = {values({4, 1, 6}), ints({1})}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "squeeze", .in = {values({2, 1, 6})}}), "");
  EXPECT_EQ(expect_cuts({.op = "identity", .in = {values({5, 6})}, .parts = 3}), "ab");
}

TEST(ShapeCut, Copies) {
  const Tensor x = values({4, 6, 5});
  EXPECT_EQ(expect_cuts({.op = "transpose", .in = {x}, .attrs = {{"perm", std::vector<int64_t>{2, 0, 1}}}}),
            "abc");
  EXPECT_EQ(expect_cuts({.op = "transpose", .in = {x}}), "abc");
  EXPECT_EQ(expect_cuts({.op = "expand", .in = {values({4, 1}), ints({2, 4, 6})}}), "bac");
  EXPECT_EQ(expect_cuts({.op = "tile", .in = {x, ints({1, 2, 1})}}), "ac");
  EXPECT_EQ(expect_cuts({.op = "concat", .in = {x, values({4, 6, 5}, 2)}, .attrs = {{"axis", int64_t{1}}}}),
            "abc");
  EXPECT_EQ(expect_cuts({.op = "concat", .in = {x, values({4, 2, 5}, 2)}, .attrs = {{"axis", int64_t{1}}}}),
            "ac");
  EXPECT_EQ(expect_cuts(
                {.op = "depth_to_space", .in = {values({2, 8, 4, 6})}, .attrs = {{"blocksize", int64_t{2}}}}),
            "acd");
  EXPECT_EQ(expect_cuts(
                {.op = "space_to_depth", .in = {values({2, 2, 4, 8})}, .attrs = {{"blocksize", int64_t{2}}}}),
            "acd");
}

TEST(ShapeCut, SectionsOfSplitsAndSlices) {
  const Tensor x = values({2, 12});
  const ir::Attrs by_size{{"axis", int64_t{1}}}, by_count{{"axis", int64_t{-1}}, {"num_outputs", int64_t{3}}};
  EXPECT_EQ(expect_cuts({.op = "split", .in = {x}, .attrs = by_count, .results = 3}), "ab");
  EXPECT_EQ(expect_cuts({.op = "split", .in = {x, ints({4, 4, 4})}, .attrs = by_size, .results = 3}), "ab");
  EXPECT_EQ(expect_cuts({.op = "split", .in = {x, ints({6, 4, 2})}, .attrs = by_size, .results = 3}), "a");
  for (const int64_t start : {0, 4, 8}) {
    const Tensor from = ints({start}), to = ints({start + 4}), axis = ints({1});
    EXPECT_EQ(expect_cuts({.op = "slice", .in = {x, from, to, axis}}), "ab");
    EXPECT_EQ(expect_cuts({.op = "slice_grad",
                           .in = {values({2, 4}), from, to, axis},
                           .attrs = {{"shape", std::vector<int64_t>{2, 12}}}}),
              "ab");
  }
  EXPECT_EQ(expect_cuts({.op = "slice", .in = {x, ints({-4}), ints({INT64_MAX}), ints({-1})}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "slice", .in = {x, ints({1}), ints({5}), ints({1})}}), "a");
  EXPECT_EQ(expect_cuts({.op = "slice", .in = {x, ints({0}), ints({12}), ints({1}), ints({2})}}), "a");
  EXPECT_EQ(expect_cuts({.op = "slice", .in = {x, ints({0, 0}), ints({2, 1000})}}), "ab");
}

TEST(ShapeCut, Fills) {
  EXPECT_EQ(expect_cuts({.op = "trilu", .in = {values({4, 3, 3})}}), "a");
  EXPECT_EQ(expect_cuts({.op = "pad", .in = {values({4, 6}), ints({0, 1, 0, 2})}}), "a");
  EXPECT_EQ(expect_cuts({.op = "pad", .in = {values({4, 6}), ints({0, 1, 0, 2}), values({})}}), "a");
  const ir::Attrs edge{{"mode", std::string("edge")}};
  EXPECT_EQ(expect_cuts({.op = "pad", .in = {values({4, 6}), ints({0, 1, 0, 2})}, .attrs = edge}), "a");
  EXPECT_EQ(expect_cuts({.op = "center_crop_pad",
                         .in = {values({4, 6}), ints({3})},
                         .attrs = {{"axes", std::vector<int64_t>{1}}}}),
            "a");
  EXPECT_EQ(expect_cuts({.op = "reverse_sequence", .in = {values({5, 4, 2}), ints({1, 5, 3, 2})}}), "bc");
  EXPECT_EQ(expect_cuts({.op = "one_hot", .in = {ints({1, 0, 2, 2}), ints({3}), values({2})}}), "a");
  EXPECT_EQ(expect_cuts({.op = "constant_of_shape", .in = {ints({4, 6})}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "col2im", .in = {values({2, 16, 9}), ints({4, 4}), ints({2, 2})}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "im2col", .in = {values({2, 4, 4, 4}), ints({4, 4}), ints({2, 2})}}), "ab");
}

// Elementwise operators whose operands differ in shape or type; elementwise_cuts_test.cc tests the others.
TEST(ShapeCut, ElementwiseWithOtherOperands) {
  const Tensor x = values({4, 6}), y = values({1, 6}, 2);
  EXPECT_EQ(expect_cuts({.op = "where", .in = {testing::run("less", {x, y})[0], x, values({6}, 4)}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "clip", .in = {x, values({}, 5)}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "pow", .in = {testing::run("abs", {x})[0], values({}, 5)}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "cast", .in = {x}, .attrs = {{"to", int64_t{7}}}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "cast_like", .in = {x, values({2}, 3)}}), "ab");
}

TEST(ShapeCut, Reductions) {
  const Tensor x = values({4, 6, 2});
  for (const int64_t keeps : {0, 1}) {
    const ir::Attrs attrs{{"keepdims", keeps}};
    for (const char* op : {"reduce_sum", "reduce_l1", "reduce_sum_square", "reduce_max"})
      EXPECT_EQ(expect_cuts({.op = op, .in = {x, ints({1})}, .attrs = attrs}), "abc") << op;
    for (const char* op : {"reduce_mean", "reduce_min", "reduce_prod", "reduce_l2", "reduce_log_sum_exp"})
      EXPECT_EQ(expect_cuts({.op = op, .in = {x, ints({1})}, .attrs = attrs}), "ac") << op;
    EXPECT_EQ(expect_cuts({.op = "reduce_sum", .in = {x}, .attrs = attrs}), "abc");
    EXPECT_EQ(expect_cuts({.op = "arg_max", .in = {x}, .attrs = {{"axis", int64_t{1}}, {"keepdims", keeps}}}),
              "ac");
  }
  const Tensor axis = Tensor::scalar<int64_t>(1);
  EXPECT_EQ(expect_cuts({.op = "cum_sum", .in = {x, axis}}), "ac");
  EXPECT_EQ(expect_cuts({.op = "cum_prod", .in = {x, axis}}), "ac");
  EXPECT_EQ(expect_cuts({.op = "cum_prod_grad", .in = {values({4, 6, 2}, 2), x, axis}}), "ac");
  for (const char* op : {"softmax", "log_softmax", "hardmax"})
    EXPECT_EQ(expect_cuts({.op = op, .in = {x}, .attrs = {{"axis", int64_t{1}}}}), "ac");
  for (const char* op : {"softmax_grad", "log_softmax_grad"})
    EXPECT_EQ(expect_cuts({.op = op, .in = {x, values({4, 6, 2}, 2)}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "top_k", .in = {x, ints({3})}, .attrs = {{"axis", int64_t{1}}}, .results = 2}),
            "ac");
}

TEST(ShapeCut, Lookups) {
  const Tensor x = values({4, 6}), y = values({4, 3}, 2);
  const Tensor at = Tensor::from<int64_t>({4, 3}, std::vector<int64_t>{0, 5, 2, 1, 1, 3, 4, 0, 2, 5, 3, 1});
  const ir::Attrs axis{{"axis", int64_t{1}}};
  EXPECT_EQ(expect_cuts({.op = "gather_elements", .in = {x, at}, .attrs = axis}), "a");
  for (const char* mode : {"add", "mul", "max"}) {
    const ir::Attrs attrs{{"axis", int64_t{1}}, {"reduction", std::string(mode)}};
    EXPECT_EQ(expect_cuts({.op = "scatter_elements", .in = {x, at, y}, .attrs = attrs}), "a");
  }
  EXPECT_EQ(expect_cuts({.op = "scatter", .in = {x, at, y}, .attrs = axis}), "a");
  const Tensor tuples = Tensor::from<int64_t>({2, 1}, std::vector<int64_t>{3, 1});
  EXPECT_EQ(expect_cuts({.op = "gather_nd", .in = {x, tuples}}), "ba");
  EXPECT_EQ(expect_cuts({.op = "scatter_nd", .in = {x, tuples, values({2, 6}, 3)}}), "a");
}

}  // namespace
}  // namespace trireme::ops
