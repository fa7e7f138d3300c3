// A tensor as KServe v2 names it: datatypes, sizes, and the binary form.
#include "serve/infer/wire_tensor.h"

#include <algorithm>
#include <cstring>

namespace trireme::serve {
namespace {

using tensor::DType;

struct TypeName {
  DType type;
  std::string_view name;
};
constexpr TypeName kTypeNames[] = {
    {DType::boolean, "BOOL"}, {DType::u8, "UINT8"}, {DType::u16, "UINT16"}, {DType::u32, "UINT32"},
    {DType::u64, "UINT64"},   {DType::i8, "INT8"},  {DType::i16, "INT16"},  {DType::i32, "INT32"},
    {DType::i64, "INT64"},    {DType::f16, "FP16"}, {DType::f32, "FP32"},   {DType::f64, "FP64"},
    {DType::bf16, "BF16"},
};
constexpr int64_t kMostBesidesZero = int64_t{1} << 24;  // elements of a large picture
constexpr std::string_view kBytes = "BYTES", kTypePrefix = "TYPE_";

/// " for model 'M'" in three parts, which cost nothing unless an error is built; empty without a model.
struct ForModel {
  std::string_view before, model, after;
  explicit ForModel(std::string_view m)
      : before(m.empty() ? "" : " for model '"), model(m), after(m.empty() ? "" : "'") {}
};

/// Reads `count` length-prefixed strings, which must fill the bytes exactly.
std::vector<std::string> strings_from(std::string_view name, const WireBytes& from, int64_t count) {
  const std::string_view bytes = from.bytes;
  const ForModel model(from.model);
  std::vector<std::string> strings;
  strings.reserve(std::min(static_cast<size_t>(count), bytes.size() / sizeof(uint32_t)));
  size_t at = 0;
  while (at < bytes.size()) {
    base::require(static_cast<int64_t>(strings.size()) < count, "unexpected number of string elements ",
                  count + 1, " for inference input '", name, "'", model.before, model.model, model.after,
                  ", expecting ", count);
    uint32_t length = 0;
    base::require(bytes.size() - at >= sizeof length,
                  "incomplete string length indicator for inference input '", name, "', expecting ",
                  sizeof length, " bytes but only ", bytes.size() - at, " bytes available");
    std::memcpy(&length, bytes.data() + at, sizeof length);
    at += sizeof length;
    base::require(length <= bytes.size() - at, "incomplete string data for inference input '", name,
                  "', expecting string of length ", length, " but only ", bytes.size() - at,
                  " bytes available");
    strings.emplace_back(bytes.substr(at, length));
    at += length;
  }
  base::require(static_cast<int64_t>(strings.size()) == count, "expected ", count,
                " string elements for inference input '", name, "'", model.before, model.model, model.after,
                ", got ", strings.size());
  return strings;
}

}  // namespace

std::string_view wire_name(WireType type) {
  if (!type) return kBytes;
  for (const TypeName& t : kTypeNames) {
    if (t.type == *type) return t.name;
  }
  base::fail_unsupported("element type ", tensor::name_of(*type), " has no KServe datatype");
}

WireType wire_type(std::string_view name) {
  if (name == kBytes) return std::nullopt;
  for (const TypeName& t : kTypeNames) {
    if (t.name == name) return t.type;
  }
  base::fail_invalid("unknown datatype '", name, "'");
}

std::string config_type_name(WireType type) {
  return std::string(kTypePrefix) + (type ? std::string(wire_name(type)) : "STRING");
}

WireType config_type(std::string_view name) {
  base::require(name.substr(0, kTypePrefix.size()) == kTypePrefix, "unknown data_type '", name, "'");
  const std::string_view rest = name.substr(kTypePrefix.size());
  if (rest == "STRING") return std::nullopt;
  base::require(rest != kBytes, "unknown data_type '", name, "'");
  return wire_type(rest);
}

int64_t wire_elements(std::string_view name, const tensor::Dims& dims) {
  // Error texts are built only if needed, because every request passes here.
  int64_t count = 1, solid = 1;
  for (int64_t d : dims) {
    base::require(d >= 0, "Unable to parse 'shape': input '", name, "' has the negative dimension ", d);
    if (__builtin_mul_overflow(count, d, &count) ||
        __builtin_mul_overflow(solid, std::max<int64_t>(d, 1), &solid)) {
      base::fail_invalid("shape ", tensor::to_string(dims), " of input '", name,
                         "' causes total element count to exceed maximum size of ", INT64_MAX);
    }
  }
  // 2^56 is the engine's limit for counts; an element has at most 8 bytes, so byte counts fit as well.
  if (count > int64_t{1} << 56) {
    base::fail_invalid("byte size overflow for input '", name, "': shape ", tensor::to_string(dims), " has ",
                       count, " elements");
  }
  // An empty tensor costs its client nothing, whatever its other extents, but models may allocate memory of
  // those extents.
  if (count == 0 && solid > kMostBesidesZero) {
    base::fail_invalid("shape ", tensor::to_string(dims), " of input '", name,
                       "' has no elements; its other extents make ", solid, ", at most ", kMostBesidesZero);
  }
  return count;
}

WireTensor tensor_from_bytes(std::string name, WireType type, tensor::Dims dims, const WireBytes& from) {
  const std::string_view bytes = from.bytes;
  const ForModel model(from.model);
  const int64_t elements = wire_elements(name, dims);
  WireTensor out{.name = std::move(name), .type = type, .dims = std::move(dims)};
  if (!type) {
    // Each string takes at least its length prefix, which bounds how many strings get memory.
    const auto most = std::min(elements, static_cast<int64_t>(bytes.size() / sizeof(uint32_t)));
    out.room = room_for_strings(most, static_cast<int64_t>(bytes.size()));
    out.strings = strings_from(out.name, from, elements);
    return out;
  }
  const int64_t expected = tensor::bytes_of(*type, elements);
  base::require(expected == static_cast<int64_t>(bytes.size()), "input byte size mismatch for input '",
                out.name, "'", model.before, model.model, model.after, ". Expected ", expected, ", got ",
                bytes.size());
  view_or_copy(out, from);
  return out;
}

void view_or_copy(WireTensor& to, const WireBytes& from) {
  const DType type = *to.type;
  const std::string_view bytes = from.bytes;
  base::check(tensor::bytes_of(type, tensor::element_count(to.dims)) == static_cast<int64_t>(bytes.size()),
              "bytes do not fit their shape");
  const size_t element_bytes = static_cast<size_t>(tensor::bits_of(type)) / 8;
  const bool is_aligned = reinterpret_cast<uintptr_t>(bytes.data()) % element_bytes == 0;
  // A C++ bool must be 0 or 1, but clients may send other bytes for true.
  const bool is_clean = type != DType::boolean ||
                        std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0 || c == 1; });
  if (is_aligned && is_clean) {
    to.values = tensor::Tensor::view(type, to.dims, std::as_bytes(std::span(bytes)), from.owner);
    return;
  }
  to.values = tensor::Tensor::empty(type, to.dims);
  std::byte* values = to.values.mutable_raw();
  if (!bytes.empty()) std::memcpy(values, bytes.data(), bytes.size());
  if (!is_clean) {
    for (size_t i = 0; i < bytes.size(); ++i) values[i] = std::byte{values[i] != std::byte{0}};
  }
}

std::shared_ptr<const base::MemoryLease> room_for_strings(int64_t count, int64_t bytes) {
  constexpr int64_t kLittleBytes = int64_t{64} << 10;
  int64_t room = 0;
  if (__builtin_mul_overflow(count, static_cast<int64_t>(sizeof(std::string)), &room) ||
      __builtin_add_overflow(room, bytes, &room))
    room = INT64_MAX / 2;
  if (room <= kLittleBytes) return nullptr;
  return std::make_shared<const base::MemoryLease>(base::MemoryUse::tensors, room);
}

std::string bytes_of_strings(const std::vector<std::string>& strings) {
  std::string out;
  for (const std::string& s : strings) {
    const auto length = static_cast<uint32_t>(s.size());
    out.append(reinterpret_cast<const char*>(&length), sizeof length);
    out.append(s);
  }
  return out;
}

}  // namespace trireme::serve
