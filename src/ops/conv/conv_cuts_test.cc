// Every legal cut of convolutions, pools and image sampling against the whole.
#include <gtest/gtest.h>

#include "ops/conv/against_double.h"
#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using testing::random_double;
using tests::expect_cuts;

const ir::Attrs kWindow{{"kernel_shape", std::vector<int64_t>{3, 3}},
                        {"strides", std::vector<int64_t>{2, 1}},
                        {"pads", std::vector<int64_t>{1, 1, 1, 1}}};

ir::Attrs with(ir::Attrs attrs, std::vector<std::pair<std::string, ir::AttrValue>> more) {
  for (auto& [name, value] : more) attrs.set(name, value);
  return attrs;
}

TEST(ConvCut, ChannelsFirst) {
  const Tensor x = random_double({2, 4, 6, 5}, 1), w = random_double({6, 4, 3, 3}, 2),
               b = random_double({6}, 3);
  EXPECT_EQ(expect_cuts({.op = "conv", .in = {x, w}, .attrs = kWindow}), "nco");
  EXPECT_EQ(expect_cuts({.op = "conv", .in = {x, w, b}, .attrs = kWindow}), "no");
  const ir::Attrs grouped = with(kWindow, {{"group", int64_t{2}}});
  const Tensor narrow = random_double({6, 2, 3, 3}, 2);
  EXPECT_EQ(expect_cuts({.op = "conv", .in = {x, narrow, b}, .attrs = grouped}), "nk");
  const Tensor dy = testing::run("conv", {x, w}, kWindow)[0];
  EXPECT_EQ(expect_cuts({.op = "conv_grad_w", .in = {x, dy}, .attrs = kWindow}), "nco");
  EXPECT_EQ(expect_cuts({.op = "conv_grad_w", .in = {x, dy}, .attrs = grouped}), "nk");
  EXPECT_EQ(expect_cuts({.op = "conv_transpose", .in = {dy, w}, .attrs = kWindow}), "nco");
  EXPECT_EQ(expect_cuts({.op = "conv_transpose", .in = {dy, w, random_double({4}, 4)}, .attrs = kWindow}),
            "no");
  EXPECT_EQ(expect_cuts({.op = "conv_transpose", .in = {dy, narrow}, .attrs = grouped}), "nk");
  const Tensor offset = random_double({2, 18, 3, 5}, 5), mask = random_double({2, 9, 3, 5}, 6);
  EXPECT_EQ(expect_cuts({.op = "deform_conv", .in = {x, w, offset, b, mask}, .attrs = kWindow}), "no");
}

TEST(ConvCut, ChannelsLast) {
  const Tensor x = random_double({2, 6, 5, 4}, 1), w = random_double({6, 4, 3, 3}, 2),
               b = random_double({6}, 3);
  const Tensor dy = testing::run("conv_nhwc", {x, w}, kWindow)[0];
  const ir::Attrs relu = with(kWindow, {{"activation", std::string("relu")}});
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc", .in = {x, w}, .attrs = kWindow}), "nco");
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc", .in = {x, w, b, dy}, .attrs = kWindow}), "no");
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc", .in = {x, w, b, dy}, .attrs = relu}), "no");
  const ir::Attrs to_x = with(kWindow, {{"in_shape", std::vector<int64_t>{6, 5}}});
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc_grad_x", .in = {dy, w}, .attrs = to_x}), "noc");
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc_grad_w", .in = {x, dy}, .attrs = kWindow}), "nco");
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc_grad_w", .in = {x, dy}, .attrs = kWindow, .results = 2}), "nco");
  const ir::Attrs nchw = with(kWindow, {{"input_layout", std::string("nchw")}});
  const Tensor first = random_double({2, 4, 6, 5}, 1), narrow = random_double({6, 2, 3, 3}, 2);
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc", .in = {first, w, b}, .attrs = nchw}), "no");
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc_grad_w", .in = {first, dy}, .attrs = nchw}), "nco");
  const auto grouped = [](const ir::Attrs& a) { return with(a, {{"group", int64_t{2}}}); };
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc", .in = {x, narrow, b}, .attrs = grouped(kWindow)}), "nk");
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc_grad_x", .in = {dy, narrow}, .attrs = grouped(to_x)}), "nk");
  EXPECT_EQ(expect_cuts({.op = "conv_nhwc_grad_w", .in = {x, dy}, .attrs = grouped(kWindow)}), "nk");
}

TEST(ConvCut, Pools) {
  const Tensor x = random_double({2, 4, 6, 5}, 1), last = random_double({2, 6, 5, 4}, 2);
  for (const char* op : {"max_pool", "average_pool", "lp_pool"})
    EXPECT_EQ(expect_cuts({.op = op, .in = {x}, .attrs = kWindow}), "nc") << op;
  EXPECT_EQ(expect_cuts({.op = "max_pool", .in = {x}, .attrs = kWindow, .results = 2}), "");
  for (const char* op : {"global_max_pool", "global_average_pool", "global_lp_pool"})
    EXPECT_EQ(expect_cuts({.op = op, .in = {x}}), "nc") << op;
  for (const char* op : {"max_pool_nhwc", "average_pool_nhwc"})
    EXPECT_EQ(expect_cuts({.op = op, .in = {last}, .attrs = kWindow}), "nc") << op;
  EXPECT_EQ(expect_cuts({.op = "global_average_pool_nhwc", .in = {last}}), "nc");
  const Tensor dy = testing::run("max_pool", {x}, kWindow)[0],
               d_last = testing::run("max_pool_nhwc", {last}, kWindow)[0];
  const ir::Attrs shaped = with(kWindow, {{"in_shape", std::vector<int64_t>{6, 5}}});
  EXPECT_EQ(expect_cuts({.op = "max_pool_grad", .in = {x, dy}, .attrs = kWindow}), "nc");
  EXPECT_EQ(expect_cuts({.op = "average_pool_grad", .in = {dy}, .attrs = shaped}), "nc");
  EXPECT_EQ(expect_cuts({.op = "max_pool_nhwc_grad", .in = {last, d_last}, .attrs = kWindow}), "nc");
  EXPECT_EQ(expect_cuts({.op = "average_pool_nhwc_grad", .in = {d_last}, .attrs = shaped}), "nc");
}

TEST(ConvCut, Regions) {
  const Tensor x = random_double({2, 4, 6, 6}, 1),
               regions = Tensor::from<double>({2, 4}, {0.5, 1, 4, 5, 1, 0, 3, 3.5});
  const Tensor images = testing::ints({1, 0});
  const ir::Attrs cells{
      {"output_height", int64_t{2}}, {"output_width", int64_t{2}}, {"sampling_ratio", int64_t{2}}};
  EXPECT_EQ(expect_cuts({.op = "roi_align", .in = {x, regions, images}, .attrs = cells}), "cr");
  ir::Attrs back = cells;
  back.erase("output_height");
  back.erase("output_width");
  EXPECT_EQ(expect_cuts({.op = "roi_align_grad",
                         .in = {x, regions, images, random_double({2, 4, 2, 2}, 2)},
                         .attrs = back}),
            "cr");
}

TEST(ConvCut, ImageSampling) {
  const Tensor x = random_double({2, 4, 3, 2}, 1), scales = Tensor::from<double>({4}, {1, 1, 2, 1.5});
  const Tensor single = Tensor::from<float>({4}, {1, 1, 2, 1.5});
  const ir::Attrs linear{{"mode", std::string("linear")}};
  EXPECT_EQ(expect_cuts({.op = "resize", .in = {x, {}, single}, .attrs = linear}), "nc");
  EXPECT_EQ(expect_cuts({.op = "resize", .in = {x, {}, {}, testing::ints({2, 4, 6, 3})}, .attrs = linear}),
            "nc");
  ir::Attrs last = linear;
  last.set("axes", std::vector<int64_t>{2, 3});
  EXPECT_EQ(expect_cuts({.op = "resize", .in = {x, {}, {}, testing::ints({6, 3})}, .attrs = last}), "nc");
  last.set("axes", std::vector<int64_t>{3, 2});
  EXPECT_EQ(expect_cuts({.op = "resize", .in = {x, {}, {}, testing::ints({3, 6})}, .attrs = last}), "");
  // The batch keeps its extent, but a scale of 1.2 mixes its images.
  const Tensor nearly = Tensor::from<float>({4}, {1.2f, 1, 2, 1.5});
  EXPECT_EQ(expect_cuts({.op = "resize", .in = {x, {}, nearly}, .attrs = linear}), "c");
  EXPECT_EQ(expect_cuts({.op = "upsample", .in = {x, single}, .attrs = linear}), "nc");
  ir::Attrs back = linear;
  back.set("shape", std::vector<int64_t>{2, 4, 3, 2});
  EXPECT_EQ(
      expect_cuts({.op = "resize_grad", .in = {random_double({2, 4, 6, 3}, 2), {}, single}, .attrs = back}),
      "nc");
  const Tensor dy_of_sizes = random_double({2, 4, 6, 3}, 2), sizes = testing::ints({2, 4, 6, 3});
  EXPECT_EQ(expect_cuts({.op = "resize_grad", .in = {dy_of_sizes, {}, {}, sizes}, .attrs = back}), "");
  const Tensor grid = random_double({2, 4, 2, 2}, 3), dy = random_double({2, 4, 4, 2}, 4);
  EXPECT_EQ(expect_cuts({.op = "grid_sample", .in = {x, grid}}), "ncpq");
  EXPECT_EQ(expect_cuts({.op = "grid_sample_grad_x",
                         .in = {dy, grid},
                         .attrs = {{"shape", std::vector<int64_t>{2, 4, 3, 2}}}}),
            "ncpq");
  EXPECT_EQ(expect_cuts({.op = "grid_sample_grad_grid", .in = {dy, x, grid}}), "ncpq");
}

}  // namespace
}  // namespace trireme::ops
