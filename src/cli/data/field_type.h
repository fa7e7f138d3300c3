// The type of a field as text: a kind, or of tensors the element type and the shape.
#pragma once

#include <string>

#include "data/dataset/dataset.h"

namespace trireme::cli {

inline std::string type_text(const data::Field& f) {
  if (f.kind != data::FieldKind::tensor) return std::string(to_string(f.kind));
  return std::string(tensor::name_of(f.dtype)) + f.shape.to_string();
}

}  // namespace trireme::cli
