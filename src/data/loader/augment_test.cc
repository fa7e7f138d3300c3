// Augmentation against plain loops and against data/image/image.h: geometry, scaling, and random choices that
// depend on the sample only.
#include "data/loader/augment.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "base/error.h"
#include "data/image/image.h"

namespace trireme::data {
namespace {

using base::Error;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

/// u8 [height, width, channels], bytes varied.
Tensor picture(int64_t height, int64_t width, int64_t channels) {
  Tensor t = Tensor::empty(DType::u8, {height, width, channels});
  for (size_t i = 0; i < t.mutable_data<uint8_t>().size(); ++i) {
    t.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(i * 37 + i / 251 + 1);
  }
  return t;
}

Tensor apply(const AugmentOptions& options, const Tensor& image, int64_t index = 0, int64_t epoch = 0) {
  Sample sample;
  sample.set("image", image);
  image_transform(options)(sample, {.seed = 17, .epoch = epoch, .index = index});
  return sample.tensor("image");
}

uint8_t pixel(const Tensor& image, int64_t y, int64_t x, int64_t c) {
  const Dims& d = image.dims();
  if (y < 0 || x < 0 || y >= d[0] || x >= d[1]) return 0;
  return image.data<uint8_t>()[static_cast<size_t>((y * d[1] + x) * d[2] + c)];
}

/// True if out [c, h, w] is the window at (top, left), mirrored or not, of the image's bytes.
bool is_window(const Tensor& out, const Tensor& image, int64_t top, int64_t left, bool mirrored) {
  const Dims& d = out.dims();
  for (int64_t c = 0; c < d[0]; ++c) {
    for (int64_t y = 0; y < d[1]; ++y) {
      for (int64_t x = 0; x < d[2]; ++x) {
        const float got = out.data<float>()[static_cast<size_t>((c * d[1] + y) * d[2] + x)];
        if (got != pixel(image, top + y, left + (mirrored ? d[2] - 1 - x : x), c)) return false;
      }
    }
  }
  return true;
}

TEST(Augment, ScalesToPlanes) {
  const Tensor image = picture(3, 5, 3);
  EXPECT_TRUE(is_window(apply({.normalize = "none"}, image), image, 0, 0, false));
  const Tensor out = apply({.normalize = "0.5,0.25,0/0.5,0.1,2"}, image);
  EXPECT_EQ(out.dims(), (Dims{3, 3, 5}));
  const double mean[] = {0.5, 0.25, 0}, deviation[] = {0.5, 0.1, 2};
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t i = 0; i < 15; ++i) {
      const double expected = (pixel(image, i / 5, i % 5, c) / 255.0 - mean[c]) / deviation[c];
      EXPECT_NEAR(out.data<float>()[static_cast<size_t>(c * 15 + i)], expected, 1e-5);
    }
  }
  EXPECT_THROW(parse_normalization("0.5/0"), Error);
  EXPECT_THROW(parse_normalization("imagnet"), Error);
  EXPECT_THROW(parse_normalization("1,2/1"), Error);
  EXPECT_EQ(parse_normalization("imagenet").mean, kImageNetScaling.mean);
}

TEST(Augment, CropsTheMiddleAsTheImageLibraryDoes) {
  for (const int64_t height : {7, 8, 9, 10, 11}) {
    const Tensor image = picture(height, 9, 3);
    const auto bytes = image.data<uint8_t>();
    const Image expected = crop_center({height, 9, {bytes.begin(), bytes.end()}}, 4, 4);
    const Tensor out = apply({.crop = 4, .normalize = "none"}, image);
    const Tensor as_tensor = Tensor::from<uint8_t>({4, 4, 3}, expected.rgb);
    EXPECT_TRUE(is_window(out, as_tensor, 0, 0, false)) << height;
  }
}

TEST(Augment, ResizesAsTheImageLibraryDoes) {
  const Tensor image = picture(20, 31, 3);
  const auto bytes = image.data<uint8_t>();
  const Image expected = resize_shorter_side({20, 31, {bytes.begin(), bytes.end()}}, 12);
  const Tensor out = apply({.resize = 12, .normalize = "none"}, image);
  EXPECT_EQ(out.dims(), (Dims{3, expected.height, expected.width}));
  EXPECT_TRUE(
      is_window(out, Tensor::from<uint8_t>({expected.height, expected.width, 3}, expected.rgb), 0, 0, false));
  EXPECT_EQ(apply({.resize = 12}, picture(20, 31, 1)).dims(), (Dims{1, 12, 18}));
}

TEST(Augment, RandomCropsReachEveryPlace) {
  // CIFAR's usual form, smaller: 6 x 6 with a border of 2 gives 5 x 5 places, mirrored or not.
  const Tensor image = picture(6, 6, 1);
  const AugmentOptions options{
      .crop = 6, .random_crop = true, .padding = 2, .flip = true, .normalize = "none"};
  std::set<std::tuple<int64_t, int64_t, bool>> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    const Tensor out = apply(options, image, i);
    int found = 0;
    for (int64_t top = -2; top <= 2; ++top) {
      for (int64_t left = -2; left <= 2; ++left) {
        for (const bool mirrored : {false, true}) {
          if (!is_window(out, image, top, left, mirrored)) continue;
          seen.insert({top, left, mirrored});
          ++found;
        }
      }
    }
    ASSERT_EQ(found, 1) << i;
  }
  EXPECT_EQ(seen.size(), 50u);
}

TEST(Augment, FlipsHalfOfTheImages) {
  const Tensor image = picture(4, 4, 3);
  int mirrored = 0;
  for (int64_t i = 0; i < 2000; ++i) {
    const Tensor out = apply({.flip = true, .normalize = "none"}, image, i);
    mirrored += is_window(out, image, 0, 0, true) ? 1 : 0;
  }
  EXPECT_NEAR(mirrored, 1000, 120);  // more than five standard deviations
}

TEST(Augment, RandomAreasHaveTheStatedShares) {
  // On a ramp, values show the cut: its last value less its first, times 64 / 63, is the width of the cut.
  Tensor ramp = Tensor::empty(DType::u8, {256, 256, 1});
  for (size_t i = 0; i < 256 * 256; ++i) ramp.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(i % 256);
  double smallest = 256, largest = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const Tensor out = apply({.crop = 64, .random_resized_crop = 0.25, .normalize = "none"}, ramp, i);
    ASSERT_EQ(out.dims(), (Dims{1, 64, 64}));
    const auto v = out.data<float>();
    const double width = (v[63] - v[0]) * 64 / 63;
    smallest = std::min(smallest, width);
    largest = std::max(largest, width);
  }
  EXPECT_GT(smallest, std::sqrt(0.25 * 0.75) * 256 - 8);  // smallest area, narrowest aspect
  EXPECT_LT(smallest, 170);
  EXPECT_GT(largest, 200);
}

TEST(Augment, DependsOnSeedEpochAndIndexOnly) {
  const Tensor image = picture(12, 12, 3);
  const AugmentOptions options{.crop = 8, .random_crop = true, .padding = 2, .flip = true};
  int same_epoch = 0, same_index = 0;
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(apply(options, image, i).same_as(apply(options, image, i)));
    same_epoch += apply(options, image, i, 0).same_as(apply(options, image, i, 1)) ? 1 : 0;
    same_index += apply(options, image, i).same_as(apply(options, image, i + 1)) ? 1 : 0;
  }
  EXPECT_LT(same_epoch, 10);
  EXPECT_LT(same_index, 10);
  // Enabling the flip leaves the crop unchanged.
  AugmentOptions still = options;
  still.flip = false;
  int equal = 0;
  for (int64_t i = 0; i < 100; ++i) equal += apply(still, image, i).same_as(apply(options, image, i)) ? 1 : 0;
  EXPECT_NEAR(equal, 50, 25);
}

TEST(Augment, RefusesWhatDoesNotFit) {
  EXPECT_THROW(apply({.crop = 9}, picture(8, 20, 3)), Error);
  EXPECT_THROW(image_transform({.random_crop = true}), Error);
  EXPECT_THROW(image_transform({.crop = 8, .padding = 2}), Error);
  EXPECT_THROW(image_transform({.resize = 9, .crop = 8, .random_resized_crop = 0.1}), Error);
  EXPECT_THROW(apply({}, Tensor::zeros(DType::u8, {4, 4, 2})), Error);
  EXPECT_THROW(apply({}, Tensor::zeros(DType::f32, {4, 4, 3})), Error);
  EXPECT_THROW(apply({}, Tensor::zeros(DType::u8, {0, 4, 3})), Error);
}

}  // namespace
}  // namespace trireme::data
