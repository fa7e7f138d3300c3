// Pictures as a field of samples: u8 [height, width, 3] from an image file's bytes.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "data/dataset/dataset.h"
#include "data/image/image.h"

namespace trireme::data {

/// Field of decoded pictures of any size.
inline Field image_field(std::string name) {
  return {std::move(name),
          FieldKind::tensor,
          tensor::DType::u8,
          {tensor::Dim::unknown(), tensor::Dim::unknown(), 3},
          false};
}

/// Decodes JPEG, PNG or BMP; the tensor owns the pixels. Throws as decode_image does.
inline tensor::Tensor decode_image_tensor(std::string_view file) {
  auto image = std::make_shared<Image>(decode_image(file));
  const std::span<const uint8_t> pixels(image->rgb);
  return tensor::Tensor::view(tensor::DType::u8, {image->height, image->width, 3}, std::as_bytes(pixels),
                              image);
}

/// True for names that end in .jpg, .jpeg, .png or .bmp, in any case.
inline bool is_image_name(std::string_view name) {
  std::string lower(name.substr(name.size() - std::min<size_t>(name.size(), 5)));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower.ends_with(".jpg") || lower.ends_with(".jpeg") || lower.ends_with(".png") ||
         lower.ends_with(".bmp");
}

}  // namespace trireme::data
