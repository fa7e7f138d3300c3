// Converts pictures to the form that a model's input expects.
#include "data/image/picture_input.h"

#include <vector>

#include "base/error.h"

namespace trireme::data {
namespace {

PixelScaling scaling_of(PixelValues values) {
  constexpr PixelScaling kBytes{.divisor = 1}, kUnit{}, kInception{.divisor = 127.5f, .mean = {1, 1, 1}};
  switch (values) {
    case PixelValues::off: base::fail_invalid("an input that takes no pictures has no scaling of them");
    case PixelValues::none: return kBytes;
    case PixelValues::unit: return kUnit;
    case PixelValues::inception: return kInception;
    case PixelValues::imagenet: return kImageNetScaling;
  }
  return kUnit;
}

}  // namespace

PictureInput::PictureInput(const tensor::Dims& dims, PixelValues values)
    : dims_(dims),
      is_planar_(dims[0] == 3),
      height_(dims[is_planar_ ? 1 : 0]),
      width_(dims[is_planar_ ? 2 : 1]),
      scaling_(scaling_of(values)) {}

std::optional<PictureInput> PictureInput::of(const tensor::Dims& dims, PixelValues values) {
  if (dims.size() != 3 || (dims[0] != 3 && dims[2] != 3)) return std::nullopt;
  for (const int64_t d : dims) {
    if (d < 1) return std::nullopt;
  }
  return PictureInput(dims, values);
}

void PictureInput::write(const Image& image, std::span<float> out) const {
  base::check(out.size() == elements(), "a picture of another size");
  const bool fits = image.height == height_ && image.width == width_;
  const Image resized = fits ? Image{} : resize(image, height_, width_);
  const Image& pixels = fits ? image : resized;
  if (is_planar_) {
    to_planes(pixels, scaling_, out);
    return;
  }
  std::vector<float> planes(out.size());  // [3, height, width]
  to_planes(pixels, scaling_, planes);
  const size_t plane = out.size() / 3;
  for (size_t i = 0; i < plane; ++i) {
    for (size_t c = 0; c < 3; ++c) out[i * 3 + c] = planes[c * plane + i];
  }
}

}  // namespace trireme::data
