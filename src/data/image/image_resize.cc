// Resizes with Pillow's fixed-point arithmetic, so that preprocessing yields exactly the bytes with which a
// model was evaluated.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/image/image.h"

namespace trireme::data {
namespace {

// Weights have 22 fractional bits; with 8 of a value and 2 of headroom for a cubic's overshoot, 32 in all.
constexpr int kWeightBits = 22;

double triangle(double x) { return std::max(0.0, 1 - std::abs(x)); }

/// The cubic convolution kernel with a = -0.5 (Keys 1981).
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/// For each output coordinate, the inputs that contribute to it, and their weights.
struct Taps {
  size_t width = 0;              // room for the weights of one output
  std::vector<int64_t> first;    // [outputs]
  std::vector<int64_t> count;    // [outputs]
  std::vector<int32_t> weights;  // [outputs, width]
};

Taps make_taps(int64_t in, int64_t out, Resample filter) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double stretch = std::max(scale, 1.0);  // the filter covers at least one input
  const double support = (filter == Resample::bilinear ? 1.0 : 2.0) * stretch;
  Taps taps;
  taps.width = static_cast<size_t>(std::ceil(support)) * 2 + 1;
  taps.weights.resize(static_cast<size_t>(out) * taps.width);
  std::vector<double> weights(taps.width);
  for (int64_t i = 0; i < out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const auto last = std::min(in, static_cast<int64_t>(center + support + 0.5));
    double sum = 0;
    for (int64_t k = first; k < last; ++k) {
      const double x = (static_cast<double>(k) - center + 0.5) * (1.0 / stretch);
      sum += weights[static_cast<size_t>(k - first)] = filter == Resample::bilinear ? triangle(x) : cubic(x);
    }
    for (int64_t k = 0; k < last - first; ++k) {
      double weight = weights[static_cast<size_t>(k)];
      if (sum != 0) weight /= sum;
      weight *= 1 << kWeightBits;
      taps.weights[static_cast<size_t>(i) * taps.width + static_cast<size_t>(k)] =
          static_cast<int32_t>(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
    taps.first.push_back(first);
    taps.count.push_back(last - first);
  }
  return taps;
}

uint8_t round_weighted(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

Image resize_rows(const Image& in, int64_t width, Resample filter) {
  const Taps taps = make_taps(in.width, width, filter);
  Image out{in.height, width, std::vector<uint8_t>(static_cast<size_t>(in.height * width * 3))};
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* row = in.rgb.data() + y * in.width * 3;
    uint8_t* to = out.rgb.data() + y * width * 3;
    for (int64_t x = 0; x < width; ++x, to += 3) {
      const uint8_t* from = row + taps.first[static_cast<size_t>(x)] * 3;
      const int32_t* weights = taps.weights.data() + static_cast<size_t>(x) * taps.width;
      int32_t r = 1 << (kWeightBits - 1), g = r, b = r;
      for (int64_t k = 0; k < taps.count[static_cast<size_t>(x)]; ++k, from += 3) {
        r += from[0] * weights[k];
        g += from[1] * weights[k];
        b += from[2] * weights[k];
      }
      to[0] = round_weighted(r);
      to[1] = round_weighted(g);
      to[2] = round_weighted(b);
    }
  }
  return out;
}

Image resize_columns(const Image& in, int64_t height, Resample filter) {
  const Taps taps = make_taps(in.height, height, filter);
  const auto row_bytes = static_cast<size_t>(in.width * 3);
  Image out{height, in.width, std::vector<uint8_t>(static_cast<size_t>(height) * row_bytes)};
  std::vector<int32_t> sums(
      row_bytes);  // a whole row at once, so that the inner loop runs over memory and vectorises
  for (int64_t y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), 1 << (kWeightBits - 1));
    for (int64_t k = 0; k < taps.count[static_cast<size_t>(y)]; ++k) {
      const uint8_t* from =
          in.rgb.data() + static_cast<size_t>(taps.first[static_cast<size_t>(y)] + k) * row_bytes;
      const int32_t weight = taps.weights[static_cast<size_t>(y) * taps.width + static_cast<size_t>(k)];
      for (size_t i = 0; i < row_bytes; ++i) sums[i] += from[i] * weight;
    }
    uint8_t* to = out.rgb.data() + static_cast<size_t>(y) * row_bytes;
    for (size_t i = 0; i < row_bytes; ++i) to[i] = round_weighted(sums[i]);
  }
  return out;
}

}  // namespace

Image resize(const Image& image, int64_t height, int64_t width, Resample filter) {
  constexpr int64_t kMaxSide = 1 << 16, kMaxPixels = 1 << 28;
  base::require(
      height > 0 && width > 0 && height <= kMaxSide && width <= kMaxSide && height * width <= kMaxPixels,
      "cannot resize to ", height, "x", width);
  base::check(image.height > 0 && image.width > 0, "cannot resize an empty image");
  // A side that keeps its length is not filtered at all.
  Image rows = width == image.width ? image : resize_rows(image, width, filter);
  return height == image.height ? rows : resize_columns(rows, height, filter);
}

Image resize_shorter_side(const Image& image, int64_t size, Resample filter) {
  base::check(image.height > 0 && image.width > 0, "cannot resize an empty image");
  const int64_t shorter = std::min(image.height, image.width);
  return resize(image, size * image.height / shorter, size * image.width / shorter, filter);
}

}  // namespace trireme::data
