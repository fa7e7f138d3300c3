// Typed reading of GGUF metadata values.
#include "tensor/gguf/gguf_metadata.h"

#include <array>
#include <limits>

#include "base/error.h"
#include "tensor/gguf/byte_cursor.h"

namespace trireme::tensor {
namespace {

struct KindRow {
  std::string_view name;
  size_t bytes;
};
constexpr std::array<KindRow, 13> kKinds{{{"u8", 1},
                                          {"i8", 1},
                                          {"u16", 2},
                                          {"i16", 2},
                                          {"u32", 4},
                                          {"i32", 4},
                                          {"f32", 4},
                                          {"boolean", 1},
                                          {"text", 0},
                                          {"array", 0},
                                          {"u64", 8},
                                          {"i64", 8},
                                          {"f64", 8}}};

bool is_float(GgufKind kind) { return kind == GgufKind::f32 || kind == GgufKind::f64; }
bool is_integer(GgufKind kind) {
  return !is_float(kind) && kind != GgufKind::boolean && kind != GgufKind::text && kind != GgufKind::array;
}

int64_t read_integer(ByteCursor& at, GgufKind kind) {
  switch (kind) {
    case GgufKind::u8: return at.number<uint8_t>();
    case GgufKind::i8: return at.number<int8_t>();
    case GgufKind::u16: return at.number<uint16_t>();
    case GgufKind::i16: return at.number<int16_t>();
    case GgufKind::u32: return at.number<uint32_t>();
    case GgufKind::i32: return at.number<int32_t>();
    case GgufKind::i64: return at.number<int64_t>();
    default: {
      const auto value = at.number<uint64_t>();
      base::require(value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), "the number ", value,
                    " does not fit 63 bits");
      return static_cast<int64_t>(value);
    }
  }
}

double read_number(ByteCursor& at, GgufKind kind) {
  if (kind == GgufKind::f32) return at.number<float>();
  if (kind == GgufKind::f64) return at.number<double>();
  return static_cast<double>(read_integer(at, kind));
}

[[noreturn]] void fail_kind(std::string_view key, const GgufValue& value, std::string_view wanted) {
  base::fail_invalid("metadata '", key.substr(0, 120), "' is ", value.describe(), ", not ", wanted);
}

}  // namespace

std::string_view name_of(GgufKind kind) {
  const auto at = static_cast<size_t>(kind);
  return at < kKinds.size() ? kKinds[at].name : "unknown";
}

size_t gguf_bytes(GgufKind kind) {
  const auto at = static_cast<size_t>(kind);
  return at < kKinds.size() ? kKinds[at].bytes : 0;
}

std::string GgufValue::describe() const {
  if (is_array) return base::concat("array of ", count, " ", name_of(kind));
  return std::string(name_of(kind));
}

void GgufMetadata::add(std::string_view key, const GgufValue& value) {
  base::require(places_.emplace(key, entries_.size()).second, "two metadata values have one key: '",
                key.substr(0, 120), "'");
  entries_.emplace_back(key, value);
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto at = places_.find(key);
  return at == places_.end() ? nullptr : &entries_[at->second].second;
}

const GgufValue& GgufMetadata::need(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) base::fail(base::ErrorCode::not_found, "the file's metadata has no '", key, "'");
  return *value;
}

int64_t GgufMetadata::integer(std::string_view key) const {
  const GgufValue& value = need(key);
  if (value.is_array || !is_integer(value.kind)) fail_kind(key, value, "an integer");
  ByteCursor at(value.bytes);
  return read_integer(at, value.kind);
}

int64_t GgufMetadata::integer(std::string_view key, int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}

double GgufMetadata::number(std::string_view key) const {
  const GgufValue& value = need(key);
  if (value.is_array || (!is_integer(value.kind) && !is_float(value.kind))) fail_kind(key, value, "a number");
  ByteCursor at(value.bytes);
  return read_number(at, value.kind);
}

double GgufMetadata::number(std::string_view key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}

bool GgufMetadata::flag(std::string_view key, bool otherwise) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_array || value->kind != GgufKind::boolean) fail_kind(key, *value, "a boolean");
  return value->bytes[0] != 0;
}

std::string_view GgufMetadata::text(std::string_view key) const {
  const GgufValue& value = need(key);
  if (value.is_array || value.kind != GgufKind::text) fail_kind(key, value, "a text");
  return ByteCursor(value.bytes).text();
}

std::string_view GgufMetadata::text(std::string_view key, std::string_view otherwise) const {
  return has(key) ? text(key) : otherwise;
}

std::vector<std::string_view> GgufMetadata::texts(std::string_view key) const {
  const GgufValue& value = need(key);
  if (!value.is_array || value.kind != GgufKind::text) fail_kind(key, value, "an array of texts");
  ByteCursor at(value.bytes);
  std::vector<std::string_view> list(static_cast<size_t>(value.count));
  for (std::string_view& text : list) text = at.text();
  return list;
}

std::vector<int64_t> GgufMetadata::integers(std::string_view key) const {
  const GgufValue& value = need(key);
  if (!value.is_array || !is_integer(value.kind)) fail_kind(key, value, "an array of integers");
  ByteCursor at(value.bytes);
  std::vector<int64_t> list(static_cast<size_t>(value.count));
  for (int64_t& number : list) number = read_integer(at, value.kind);
  return list;
}

std::vector<double> GgufMetadata::numbers(std::string_view key) const {
  const GgufValue& value = need(key);
  if (!value.is_array || (!is_integer(value.kind) && !is_float(value.kind)))
    fail_kind(key, value, "an array of numbers");
  ByteCursor at(value.bytes);
  std::vector<double> list(static_cast<size_t>(value.count));
  for (double& number : list) number = read_number(at, value.kind);
  return list;
}

}  // namespace trireme::tensor
