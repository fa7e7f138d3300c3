// Writes GGUF files (version 3): metadata, the directory of tensors, then their bytes one tensor at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/gguf/gguf_file.h"

namespace trireme::tensor {

class GgufWriter {
 public:
  /// Values replace those of the same key, in its place; else they follow in the order of the calls.
  void set(std::string_view key, const GgufValue& value);  ///< as another file holds it
  void set_integer(std::string_view key, uint32_t value);
  void set_number(std::string_view key, float value);
  void set_flag(std::string_view key, bool value);
  void set_text(std::string_view key, std::string_view value);
  void set_texts(std::string_view key, std::span<const std::string> values);
  void set_integers(std::string_view key, std::span<const int32_t> values);
  void set_numbers(std::string_view key, std::span<const float> values);

  /// Announces a tensor. Throws invalid_argument unless blocks divide its rows, and for more than 4
  /// dimensions.
  void add(std::string name, const Dims& dims, const GgufType& type);
  size_t tensors() const { return tensors_.size(); }
  /// Bytes of all tensors, without padding.
  int64_t tensor_bytes() const;

  /// All that stands before the tensors' bytes.
  std::string header() const;
  /// Writes the file, which appears whole or not at all. `bytes_of(i)` gives the content of the i-th tensor
  /// that was announced; it is asked once for each, in their order. Throws invalid_argument for content of
  /// another size.
  void write(const std::string& path, const std::function<std::string(size_t)>& bytes_of) const;

 private:
  struct Entry {
    std::string key;
    uint32_t kind;  ///< as the file numbers it; an array's bytes begin with kind and count
    std::string bytes;
  };
  struct Planned {
    std::string name;
    Dims dims;
    const GgufType* type;
    int64_t bytes;
  };
  void put(std::string_view key, GgufKind kind, std::string bytes);
  void put_array(std::string_view key, GgufKind kind, uint64_t count, const std::string& bytes);

  std::vector<Entry> entries_;
  std::vector<Planned> tensors_;
};

}  // namespace trireme::tensor
