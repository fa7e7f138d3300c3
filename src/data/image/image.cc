// Recognises image formats by their first bytes; crops images, and scales them to planes.
#include "data/image/image.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trireme::data {

Image decode_image(std::string_view file, const ImageLimits& limits) {
  if (file.starts_with("\xFF\xD8")) return decode_jpeg(file, limits);
  if (file.starts_with("\x89PNG")) return decode_png(file, limits);
  if (file.starts_with("BM")) return decode_bmp(file, limits);
  base::fail_unsupported("image is neither JPEG, PNG nor BMP");
}

int64_t pixels_in(size_t file_bytes, int64_t pixels_per_byte) {
  return static_cast<int64_t>(std::min<size_t>(file_bytes, size_t{1} << 40)) * pixels_per_byte;
}

Image crop_center(const Image& image, int64_t height, int64_t width) {
  base::require(height > 0 && width > 0 && height <= image.height && width <= image.width,
                "crop must lie inside the image: crop ", height, "x", width, ", image ", image.height, "x",
                image.width);
  // nearbyint rounds halves to even, as Python's round does.
  const auto top = static_cast<int64_t>(std::nearbyint(static_cast<double>(image.height - height) / 2));
  const auto left = static_cast<int64_t>(std::nearbyint(static_cast<double>(image.width - width) / 2));
  Image out{height, width, {}};
  out.rgb.reserve(static_cast<size_t>(height * width * 3));
  for (int64_t y = 0; y < height; ++y) {
    const auto row = image.rgb.begin() + ((top + y) * image.width + left) * 3;
    out.rgb.insert(out.rgb.end(), row, row + width * 3);
  }
  return out;
}

void to_planes(const Image& image, const PixelScaling& scaling, std::span<float> out) {
  const auto pixels = static_cast<size_t>(image.height * image.width);
  base::check(out.size() == 3 * pixels && image.rgb.size() == 3 * pixels,
              "image and planes differ in size: ", pixels, " pixels, ", out.size(), " values");
  for (size_t c = 0; c < 3; ++c) {
    // A byte has 256 values: one table per channel replaces the divisions and gives the same bits.
    std::array<float, 256> table;
    for (size_t v = 0; v < 256; ++v) {
      table[v] = (static_cast<float>(v) / scaling.divisor - scaling.mean[c]) / scaling.deviation[c];
    }
    const uint8_t* from = image.rgb.data() + (scaling.bgr ? 2 - c : c);
    float* to = out.data() + c * pixels;
    for (size_t i = 0; i < pixels; ++i) to[i] = table[from[3 * i]];
  }
}

}  // namespace trireme::data
