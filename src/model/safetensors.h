// The safetensors format: named tensors in one file, read without copying.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace trireme::model {

/// The tensors of a file by name. They look into the mapped file; 16-bit floats keep their type.
class Safetensors {
 public:
  /// Maps the file. Throws not_found, invalid_argument (header, bounds, overlap) or unsupported (element
  /// type).
  static Safetensors open(const std::string& path);
  /// Reads bytes that `owner` keeps alive.
  static Safetensors parse(std::string_view bytes, std::shared_ptr<const void> owner);

  const tensor::Tensor* find(std::string_view name) const;
  /// Throws not_found.
  const tensor::Tensor& need(std::string_view name) const;
  /// Sorted by name.
  const std::vector<std::pair<std::string, tensor::Tensor>>& tensors() const { return tensors_; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }

 private:
  std::vector<std::pair<std::string, tensor::Tensor>> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

}  // namespace trireme::model
