// Images in: JPEG, PNG and BMP to RGB bytes, resized and cropped as Pillow does, then scaled to a model's f32
// input.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trireme::data {

struct Image {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
};

/// What a file may cost. All are checked from what the file states, before the work they bound is begun.
struct ImageLimits {
  int64_t max_pixels = 50'000'000;  // of the file's stated size, checked before anything is allocated for it
  /// A progressive JPEG goes over the picture once a scan; honest ones have about ten, of large pictures too.
  int max_scans = 100;
  int64_t max_scanned_pixels = 500'000'000;  // pixels x scans
};

/// Pixels that a file of so many bytes can be asked for: each format packs at most `pixels_per_byte` into
/// one, so a file that states more is cut off, and nothing is allocated for it.
int64_t pixels_in(size_t file_bytes, int64_t pixels_per_byte);

/// Decodes a file's bytes; the format is told by its first bytes. Grey and palette become RGB, CMYK is
/// converted, alpha is dropped, 16 bits keep the upper 8, orientation tags and colour profiles are ignored
/// (all as Pillow's "RGB"). Throws invalid_argument for what is broken, cut off or too large, unsupported for
/// other formats.
Image decode_image(std::string_view file, const ImageLimits& limits = {});

Image decode_jpeg(std::string_view file, const ImageLimits& limits);
Image decode_png(std::string_view file, const ImageLimits& limits);
/// 24 and 32 bits a pixel, uncompressed.
Image decode_bmp(std::string_view file, const ImageLimits& limits);

enum class Resample { bilinear, bicubic };

/// Resizes with antialiasing: the filter widens when it shrinks. Bit for bit the result of Pillow up to 12:
/// two passes, rows first, 22-bit weights, 8 bits between the passes. (Pillow 13 at times takes columns
/// first, and levels differ.)
Image resize(const Image& image, int64_t height, int64_t width, Resample filter = Resample::bilinear);

/// Resizes so that the shorter side has `size`; the longer one is rounded down (torchvision's rule).
Image resize_shorter_side(const Image& image, int64_t size, Resample filter = Resample::bilinear);

/// Cuts the middle out; a half goes to the even side (torchvision's rule). Throws if the image is smaller.
Image crop_center(const Image& image, int64_t height, int64_t width);

/// value = (byte / divisor - mean[c]) / deviation[c], in f32, c counted in the output's channel order.
struct PixelScaling {
  float divisor = 255;
  std::array<float, 3> mean = {0, 0, 0};
  std::array<float, 3> deviation = {1, 1, 1};
  bool bgr = false;  // output channels are blue, green, red
};

/// The mean and deviation that most ImageNet models were trained with.
inline constexpr PixelScaling kImageNetScaling = {.mean = {0.485f, 0.456f, 0.406f},
                                                  .deviation = {0.229f, 0.224f, 0.225f}};

/// Writes the image as out [3, height, width].
void to_planes(const Image& image, const PixelScaling& scaling, std::span<float> out);

}  // namespace trireme::data
