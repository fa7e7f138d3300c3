// Pictures as a model's input wants them: resized, scaled, and with the channels where the model has them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "data/image/image.h"
#include "tensor/shape.h"

namespace trireme::data {

/// What the bytes b of a picture become: b, b / 255, b / 127.5 - 1, or scaled by ImageNet's mean and
/// deviation. `off`: the input is no picture.
enum class PixelValues : uint8_t { off, none, unit, inception, imagenet };

/// Immutable; any thread.
class PictureInput {
 public:
  /// `dims` [3, height, width] or [height, width, 3]; nothing for others.
  static std::optional<PictureInput> of(const tensor::Dims& dims, PixelValues values);

  const tensor::Dims& dims() const { return dims_; }
  /// f32 values of one picture.
  size_t elements() const { return static_cast<size_t>(height_ * width_ * 3); }
  /// Writes elements() values. Throws as decode_image() does.
  void decode(std::string_view file, std::span<float> out) const { write(decode_image(file), out); }
  void write(const Image& image, std::span<float> out) const;

 private:
  PictureInput(const tensor::Dims& dims, PixelValues values);

  tensor::Dims dims_;
  bool is_planar_;
  int64_t height_, width_;
  PixelScaling scaling_;
};

}  // namespace trireme::data
