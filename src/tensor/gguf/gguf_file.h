// The GGUF container (versions 2 and 3, little endian): metadata and named tensors in one mapped file.
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/gguf/gguf_metadata.h"
#include "tensor/shape.h"

namespace trireme::tensor {

/// How a tensor's elements are stored: rows of blocks of `elements` in `bytes`. One row for each type that
/// the format numbers, whether we compute with it or not.
struct GgufType {
  uint32_t id;
  std::string_view name;  ///< lower case: "f32", "q4_k"
  int64_t elements, bytes;

  /// Bytes of a row of `width` elements. Throws invalid_argument unless blocks divide it.
  int64_t row_bytes(int64_t width) const;
};

/// Throws unsupported for a number or name that the format does not have.
const GgufType& gguf_type(uint32_t id);
const GgufType& gguf_type(std::string_view name);

/// One tensor, looking into the file.
struct GgufTensor {
  std::string name;
  Dims dims;  ///< outermost first, as everywhere here; the file has them innermost first
  const GgufType* type;
  std::span<const std::byte> bytes;
};

/// A file whose every count, length, offset and type was checked before use.
class GgufFile {
 public:
  /// Maps the file. Throws not_found; invalid_argument for a damaged file; unsupported for another version,
  /// byte order or element type.
  static GgufFile open(const std::string& path);
  /// Reads bytes that `owner` keeps alive.
  static GgufFile parse(std::string_view bytes, std::shared_ptr<const void> owner);

  const GgufMetadata& metadata() const { return metadata_; }
  /// Sorted by name.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;
  uint32_t version() const { return version_; }
  /// What the tensors' bytes look into.
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  uint32_t version_ = 3;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::shared_ptr<const void> owner_;
};

/// True if the bytes begin as a GGUF file does.
bool is_gguf(std::string_view bytes);

}  // namespace trireme::tensor
