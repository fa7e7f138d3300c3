// Gradients of resize, upsample, grid_sample and affine_grid against central differences.
#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary

Tensor scales(std::vector<float> v) {
  const int64_t n = static_cast<int64_t>(v.size());
  return Tensor::from<float>({n}, std::span<const float>(v));
}

TEST(ResizeGrad, MatchesDifferences) {
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* coordinates : {"half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"}) {
      ir::Attrs attrs{{"mode", std::string(mode)}};
      attrs.set("coordinate_transformation_mode", std::string(coordinates));
      expect_gradient({.op = "resize",
                       .in = {values({1, 2, 4, 5}), Tensor(), scales({1, 1, 2, 1.6f})},
                       .attrs = attrs,
                       .constant = {2}});
      expect_gradient({.op = "resize",
                       .in = {values({2, 1, 6, 5}), Tensor(), Tensor(), ints({2, 1, 3, 7})},
                       .attrs = attrs});
    }
    if (std::string(mode) == "nearest") continue;
    expect_gradient({.op = "resize",
                     .in = {values({1, 1, 7, 6}), Tensor(), Tensor(), ints({1, 1, 3, 4})},
                     .attrs = {{"mode", std::string(mode)}, {"antialias", int64_t{1}}}});
    ir::Attrs crop{{"mode", std::string(mode)}, {"extrapolation_value", 2.0}};
    crop.set("coordinate_transformation_mode", std::string("tf_crop_and_resize"));
    expect_gradient({.op = "resize",
                     .in = {values({1, 1, 4, 4}), scales({0, 0, 0.3f, -0.2f, 1, 1, 1.2f, 0.8f}), Tensor(),
                            ints({1, 1, 3, 5})},
                     .attrs = crop,
                     .constant = {1}});
  }
  expect_gradient({.op = "resize", .in = {values({1, 2, 3}), Tensor(), scales({1, 1, 1})}, .constant = {2}});
  expect_gradient({.op = "upsample",
                   .in = {values({1, 2, 3, 2}), scales({1, 1, 2, 3})},
                   .attrs = {{"mode", std::string("linear")}},
                   .constant = {1}});
  expect_gradient({.op = "upsample", .in = {values({1, 2, 3, 2}), scales({1, 1, 2, 3})}, .constant = {1}});
}

TEST(GridGrad, SamplingMatchesDifferences) {
  for (const char* padding : {"zeros", "border", "reflection"}) {
    for (const char* mode : {"linear", "cubic", "nearest"}) {
      for (int64_t align : {0, 1}) {
        ir::Attrs attrs{{"mode", std::string(mode)}, {"align_corners", align}};
        attrs.set("padding_mode", std::string(padding));
        // The op rounds coordinates to f32, hence larger steps and a larger tolerance.
        expect_gradient({.op = "grid_sample",
                         .in = {values({2, 2, 4, 5}), random_tensor(DType::f64, {2, 3, 2, 2}, -1.3, 1.3, 8)},
                         .attrs = attrs,
                         .step = 1e-4,
                         .tolerance = 2e-3});
      }
    }
  }
  expect_gradient({.op = "grid_sample",
                   .in = {values({1, 2, 6}), random_tensor(DType::f64, {1, 4, 1}, -0.9, 0.9, 8)},
                   .step = 1e-4,
                   .tolerance = 2e-3});
  expect_gradient({.op = "grid_sample",
                   .in = {values({1, 1, 3, 4, 3}), random_tensor(DType::f64, {1, 2, 2, 1, 3}, -0.9, 0.9, 8)},
                   .step = 1e-4,
                   .tolerance = 2e-3});
}

TEST(GridGrad, AffineGridMatchesDifferences) {
  for (int64_t align : {0, 1}) {
    const ir::Attrs attrs{{"align_corners", align}};
    expect_gradient({.op = "affine_grid", .in = {values({2, 2, 3}), ints({2, 1, 3, 4})}, .attrs = attrs});
    expect_gradient({.op = "affine_grid", .in = {values({1, 3, 4}), ints({1, 2, 2, 3, 2})}, .attrs = attrs});
  }
}

}  // namespace
}  // namespace trireme::ops
