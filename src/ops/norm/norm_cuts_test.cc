// Every legal cut of the normalisations against the whole.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::values;
using tests::expect_cuts;

TEST(NormCut, RowsOfLayerAndRmsNorm) {
  const Tensor x = values({2, 4, 6}, 1), scale = values({6}, 2), bias = values({6}, 3),
               dy = values({2, 4, 6}, 4);
  EXPECT_EQ(expect_cuts({.op = "layer_norm", .in = {x, scale, bias}, .results = 3}), "ab");
  EXPECT_EQ(expect_cuts({.op = "rms_norm", .in = {x, scale}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "layer_norm_grad", .in = {dy, x, scale, values({2, 4, 6}, 5)}, .results = 3}),
            "ab");
  EXPECT_EQ(expect_cuts({.op = "rms_norm_grad", .in = {dy, x, scale}, .results = 2}), "ab");
  const ir::Attrs two{{"axis", int64_t{1}}};
  EXPECT_EQ(expect_cuts({.op = "layer_norm", .in = {x, values({4, 6}, 2)}, .attrs = two}), "a");
  EXPECT_EQ(
      expect_cuts({.op = "layer_norm_grad", .in = {dy, x, values({4, 6}, 2)}, .attrs = two, .results = 3}),
      "a");
  EXPECT_EQ(expect_cuts({.op = "add_layer_norm", .in = {x, dy, scale, bias}, .results = 2}), "ab");
}

TEST(NormCut, ImagesAndChannels) {
  const Tensor x = values({2, 4, 3, 2}, 1), c = values({4}, 2),
               var = testing::random_tensor(DType::f64, {4}, 1, 2, 3);
  EXPECT_EQ(expect_cuts({.op = "batch_norm", .in = {x, c, c, c, var}}), "bcf");
  EXPECT_EQ(expect_cuts({.op = "instance_norm", .in = {x, c, c}}), "bc");
  EXPECT_EQ(expect_cuts({.op = "group_norm", .in = {x, c, c}, .attrs = {{"num_groups", int64_t{2}}}}), "bc");
  EXPECT_EQ(expect_cuts({.op = "group_norm", .in = {x, c, c}, .attrs = {{"num_groups", int64_t{1}}}}), "b");
  for (const int64_t groups : {2, 1}) {
    EXPECT_EQ(expect_cuts({.op = "group_norm_nhwc",
                           .in = {values({2, 3, 2, 4}, 1), c, c},
                           .attrs = {{"num_groups", groups}}}),
              groups == 2 ? "bc" : "b");
  }
  EXPECT_EQ(expect_cuts({.op = "mean_variance_norm", .in = {x}}), "b");
  const ir::Attrs window{{"size", int64_t{3}}};
  EXPECT_EQ(expect_cuts({.op = "lrn", .in = {x}, .attrs = window}), "ad");
  EXPECT_EQ(expect_cuts({.op = "lrn_grad", .in = {x, x}, .attrs = window}), "ad");
  EXPECT_EQ(expect_cuts({.op = "lp_norm", .in = {x}, .attrs = {{"axis", int64_t{1}}}}), "ad");
}

TEST(NormCut, StatisticsOfABatchAreEachPartsOwn) {
  // Channels are cut by the common trial; the batch is tested separately, since parts have their own
  // statistics.
  const Tensor x = values({3, 4, 3, 2}, 1), c = values({4}, 2), dy = values({3, 4, 3, 2}, 3);
  const ir::Attrs relu{{"activation", std::string("relu")}};
  EXPECT_EQ(expect_cuts({.op = "batch_norm_train", .in = {x, c, c, dy}, .attrs = relu, .results = 4}), "c");
  const auto y = testing::run("batch_norm_train", {x, c, c, dy}, relu, 4);
  EXPECT_EQ(
      expect_cuts(
          {.op = "batch_norm_grad", .in = {dy, x, c, c, y[1], y[2], y[0]}, .attrs = relu, .results = 4}),
      "c");
  const auto plain = testing::run("batch_norm_train", {x, c, c}, {}, 4);
  EXPECT_EQ(
      expect_cuts({.op = "batch_norm_grad", .in = {dy, x, c, c, plain[1], plain[2], {}, dy}, .results = 3}),
      "c");
  const ir::OpSchema& schema = table().need("batch_norm_train").schema;
  ir::Attrs none;
  ir::NodeView view{
      .attrs = none, .in = {x.type(), c.type(), c.type()}, .out = {}, .known = {}, .is_present = {1, 1, 1}};
  view.out = schema.infer(view);
  EXPECT_EQ(schema.cut(view).notation, "bc..,c,c->bc..,c,c,c");
  EXPECT_EQ(schema.cut(view).own, "b");
}

TEST(NormCut, Pooling) {
  const Tensor mask = testing::random_tensor(DType::f64, {2, 5}, 0, 1, 4);
  EXPECT_EQ(expect_cuts({.op = "masked_mean_pool", .in = {values({2, 5, 4}, 1), mask}}), "bd");
  EXPECT_EQ(expect_cuts({.op = "l2_normalize", .in = {values({2, 4, 3}, 1)}}), "ab");
}

}  // namespace
}  // namespace trireme::ops
