// BMP: uncompressed, 24 or 32 bits per pixel.
#include <cstring>

#include "base/error.h"
#include "data/image/image.h"

namespace trireme::data {
namespace {

/// A little-endian number at `offset`; the file has been checked to reach that far.
template <class T>
T number_at(std::string_view file, size_t offset) {
  T value{};
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

}  // namespace

Image decode_bmp(std::string_view file, const ImageLimits& limits) {
  base::require(file.size() >= 54, "BMP is cut off");
  const auto pixels_at = number_at<uint32_t>(file, 10);
  const auto header_bytes = number_at<uint32_t>(file, 14);
  const int64_t width = number_at<int32_t>(file, 18);
  const int64_t signed_height = number_at<int32_t>(file, 22);  // negative: rows run from the top
  const auto bits = number_at<uint16_t>(file, 28);
  const auto compression = number_at<uint32_t>(file, 30);
  const int64_t height = signed_height < 0 ? -signed_height : signed_height;
  base::require(header_bytes >= 40 && width > 0 && height > 0, "BMP header is broken");
  if ((bits != 24 && bits != 32) || compression != 0) {
    base::fail_unsupported("BMP is not plain 24 or 32 bit: bits ", bits, ", compression ", compression);
  }
  base::require(height <= limits.max_pixels / width, "image is too large: ", height, "x", width, ", limit ",
                limits.max_pixels, " pixels");
  const int64_t step = bits / 8;
  const int64_t row_bytes = (width * step + 3) / 4 * 4;  // rows are padded to four bytes
  base::require(pixels_at >= 54 && pixels_at + height * row_bytes <= static_cast<int64_t>(file.size()),
                "BMP is cut off");
  Image image{height, width, std::vector<uint8_t>(static_cast<size_t>(height * width * 3))};
  for (int64_t y = 0; y < height; ++y) {
    const int64_t stored = signed_height < 0 ? y : height - 1 - y;
    const char* from = file.data() + pixels_at + stored * row_bytes;
    uint8_t* to = image.rgb.data() + y * width * 3;
    for (int64_t x = 0; x < width; ++x, from += step, to += 3) {
      for (int c = 0; c < 3; ++c) to[c] = static_cast<uint8_t>(from[2 - c]);  // stored blue, green, red
    }
  }
  return image;
}

}  // namespace trireme::data
