// The key/value metadata of a GGUF file: architecture, sizes, tokenizer, chat template, read where it lies.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::tensor {

/// Types of metadata values as the format numbers them.
enum class GgufKind : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

/// "u8" .. "f64", "boolean", "text", "array".
std::string_view name_of(GgufKind kind);

/// Bytes of one element of a kind; 0 for text and arrays, whose size is in the file.
size_t gguf_bytes(GgufKind kind);

/// One value: a scalar, a text, or an array of scalars or texts.
struct GgufValue {
  GgufKind kind = GgufKind::u8;  ///< of the scalar, or of the elements of an array
  bool is_array = false;
  uint64_t count = 1;      ///< elements
  std::string_view bytes;  ///< elements as they lie in the file; a text is u64 length and bytes

  /// "u32", "text", "array of 32000 f32": for messages and listings.
  std::string describe() const;
};

/// Keys and values of a file. Views look into the file, which the metadata keeps mapped. Getters without an
/// `otherwise` throw not_found for a missing key; all throw invalid_argument for a value of another kind.
class GgufMetadata {
 public:
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const GgufValue* find(std::string_view key) const;
  const GgufValue& need(std::string_view key) const;
  /// In the order of the file.
  const std::vector<std::pair<std::string_view, GgufValue>>& entries() const { return entries_; }

  /// Any integer kind that fits i64.
  int64_t integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t otherwise) const;
  /// Any integer or float kind.
  double number(std::string_view key) const;
  double number(std::string_view key, double otherwise) const;
  bool flag(std::string_view key, bool otherwise) const;
  std::string_view text(std::string_view key) const;
  std::string_view text(std::string_view key, std::string_view otherwise) const;

  /// Elements of an array; of 16 bytes for each text at most, which has 8 bytes in the file at least.
  std::vector<std::string_view> texts(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;

  /// Adds a key that `value` describes. Throws invalid_argument if the key is there.
  void add(std::string_view key, const GgufValue& value);
  /// What views look into: a mapped file, a buffer.
  void keep(std::shared_ptr<const void> owner) { owner_ = std::move(owner); }

 private:
  std::vector<std::pair<std::string_view, GgufValue>> entries_;
  std::map<std::string_view, size_t> places_;
  std::shared_ptr<const void> owner_;
};

}  // namespace trireme::tensor
