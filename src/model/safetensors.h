// The safetensors format: named tensors in one file, read without copying, written whole or not at all.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace trireme::base {
class MappedFile;
}

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
  /// Leaves large tensors their types alone (tensor/absent.h).
  void drop_content();
  /// Sorted by name.
  const std::vector<std::pair<std::string, tensor::Tensor>>& tensors() const { return tensors_; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }
  /// The mapped file that open() read; null for others.
  const std::shared_ptr<const base::MappedFile>& file() const { return file_; }

 private:
  std::shared_ptr<const base::MappedFile> file_;
  std::vector<std::pair<std::string, tensor::Tensor>> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

using NamedTensors = std::vector<std::pair<std::string, tensor::Tensor>>;

/// The order in which a file holds its tensors: wide elements first, so that all lie aligned without gaps;
/// then by name. Gives indices into `tensors`.
std::vector<size_t> safetensors_order(const NamedTensors& tensors);

/// What a file starts with: the length and the JSON header, padded to a multiple of 64 bytes. The tensors'
/// bytes follow in the order given. Throws unsupported for an element type that the format lacks.
std::string safetensors_header(const NamedTensors& tensors, std::span<const size_t> order,
                               const std::vector<std::pair<std::string, std::string>>& metadata = {});

/// Writes a file that appears whole or not at all.
void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const std::vector<std::pair<std::string, std::string>>& metadata = {});

}  // namespace trireme::model
