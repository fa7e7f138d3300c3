// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps or
// overlap.
#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/files/file.h"
#include "base/text/json.h"
#include "tensor/element_bytes.h"
#include "tensor/absent.h"

namespace trireme::model {
namespace {

using tensor::DType;
using tensor::Tensor;

constexpr uint64_t kMaxHeaderBytes = 100 << 20;  // the reference implementation's limit
constexpr size_t kPrefix = 8;

struct TypeRow {
  std::string_view name;
  DType dtype;
};
constexpr std::array<TypeRow, 16> kTypes{{
    {"F32", DType::f32},
    {"F64", DType::f64},
    {"F16", DType::f16},
    {"BF16", DType::bf16},
    {"I8", DType::i8},
    {"U8", DType::u8},
    {"I16", DType::i16},
    {"U16", DType::u16},
    {"I32", DType::i32},
    {"U32", DType::u32},
    {"I64", DType::i64},
    {"U64", DType::u64},
    {"BOOL", DType::boolean},
    {"F8_E4M3", DType::f8e4m3fn},
    {"F8_E5M2", DType::f8e5m2},
    {"F8_E8M0", DType::f8e8m0},
}};

DType dtype_from(const std::string& name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.dtype;
  }
  base::fail_unsupported("safetensors element type '", name.substr(0, 20), "' is not supported");
}

std::string_view name_for(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.name;
  }
  base::fail_unsupported("safetensors has no element type for ", tensor::name_of(dtype));
}

struct Range {
  uint64_t begin, end;
};

/// Reads the tensor of one header entry; returns its byte range for the overlap check.
Range read_entry(const base::Json& entry, std::string_view data, const std::shared_ptr<const void>& owner,
                 Tensor& out) {
  const DType dtype = dtype_from(entry.at("dtype").as_string());
  tensor::Dims dims;
  for (const base::Json& d : entry.at("shape").as_array()) dims.push_back(d.as_int());
  const base::JsonArray& offsets = entry.at("data_offsets").as_array();
  base::require(offsets.size() == 2, "data_offsets must be two numbers");
  const Range range{offsets[0].as_uint(), offsets[1].as_uint()};
  base::require(range.begin <= range.end && range.end <= data.size(), "data_offsets [", range.begin, ",",
                range.end, "] are outside the ", data.size(), " bytes of data");
  const std::string_view bytes = data.substr(range.begin, range.end - range.begin);
  const int64_t wanted = bytes_of(dtype, tensor::element_count(dims));
  base::require(wanted == static_cast<int64_t>(bytes.size()), "shape ", tensor::to_string(dims), " of ",
                tensor::name_of(dtype), " needs ", wanted, " bytes, data_offsets give ", bytes.size());
  out = Tensor::view(dtype, dims, std::as_bytes(std::span(bytes.data(), bytes.size())), owner);
  const auto alignment = static_cast<size_t>(element_bytes(dtype));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignment != 0) out = out.clone();
  if (dtype == DType::boolean) {
    const auto is_bad = [](std::byte b) { return b > std::byte{1}; };
    base::require(std::none_of(out.raw(), out.raw() + out.bytes(), is_bad), "a boolean is neither 0 nor 1");
  }
  return range;
}

/// Checks the format's rule: tensors fill the data from its first to its last byte, without gaps or overlap.
void check_ranges(std::vector<Range> ranges, size_t data_bytes) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t end = 0;
  for (const Range& r : ranges) {
    base::require(r.begin >= end, "tensors overlap at byte ", r.begin);
    base::require(r.begin == end, "bytes ", end, " to ", r.begin, " of the data belong to no tensor");
    end = r.end;
  }
  base::require(end == data_bytes, "bytes ", end, " to ", data_bytes, " of the data belong to no tensor");
}

}  // namespace

Safetensors Safetensors::parse(std::string_view bytes, std::shared_ptr<const void> owner) {
  base::require(bytes.size() >= kPrefix, "safetensors file is truncated");
  uint64_t length = 0;
  for (size_t i = kPrefix; i-- > 0;) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  base::require(length <= kMaxHeaderBytes && length <= bytes.size() - kPrefix, "safetensors header of ",
                length, " bytes does not fit the file");
  const base::Json header =
      base::parse_json(bytes.substr(kPrefix, length), {.depth = 8, .size_bytes = kMaxHeaderBytes});
  base::require(header.is_object(), "safetensors header is not an object");
  const std::string_view data = bytes.substr(kPrefix + length);
  Safetensors file;
  std::vector<Range> ranges;
  for (const base::JsonMember& member : header.as_object()) {
    if (member.key == "__metadata__") {
      for (const auto& [key, value] : member.value.as_object())
        file.metadata_.emplace_back(key, value.as_string());
      continue;
    }
    try {
      Tensor t;
      const Range range = read_entry(member.value, data, owner, t);
      if (range.begin != range.end) ranges.push_back(range);
      file.tensors_.emplace_back(member.key, std::move(t));
    } catch (const base::Error& e) {
      throw e.with(base::concat("tensor '", member.key.substr(0, 120), "'"));
    }
  }
  check_ranges(std::move(ranges), data.size());
  std::sort(file.tensors_.begin(), file.tensors_.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto twice = std::adjacent_find(file.tensors_.begin(), file.tensors_.end(),
                                        [](const auto& a, const auto& b) { return a.first == b.first; });
  base::require(twice == file.tensors_.end(), "two tensors have one name: '",
                twice == file.tensors_.end() ? "" : twice->first.substr(0, 120), "'");
  return file;
}

Safetensors Safetensors::open(const std::string& path) {
  const auto file = base::MappedFile::open(path);
  try {
    Safetensors read = parse(file->text(), file);
    read.file_ = file;
    return read;
  } catch (const base::Error& e) {
    throw e.with(base::concat("file '", path, "'"));
  }
}

const Tensor* Safetensors::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const auto& item, std::string_view n) { return item.first < n; });
  return at != tensors_.end() && at->first == name ? &at->second : nullptr;
}

void Safetensors::drop_content() {
  for (auto& [name, t] : tensors_) t = tensor::without_content(t);
}

const Tensor& Safetensors::need(std::string_view name) const {
  const Tensor* t = find(name);
  if (t == nullptr) base::fail(base::ErrorCode::not_found, "no tensor '", name, "' among ", tensors_.size());
  return *t;
}

std::vector<size_t> safetensors_order(const NamedTensors& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int64_t width_a = bytes_of(tensors[a].second.dtype(), 1);
    const int64_t width_b = bytes_of(tensors[b].second.dtype(), 1);
    return width_a != width_b ? width_a > width_b : tensors[a].first < tensors[b].first;
  });
  return order;
}

std::string safetensors_header(const NamedTensors& tensors, std::span<const size_t> order,
                               const std::vector<std::pair<std::string, std::string>>& metadata) {
  base::Json header = base::Json::object();
  if (!metadata.empty()) {
    base::Json& texts = header.set("__metadata__", base::Json::object());
    for (const auto& [key, value] : metadata) texts.set(key, value);
  }
  base::JsonObject& members = header.as_object();
  int64_t offset = 0;
  for (const size_t i : order) {
    const auto& [name, t] = tensors[i];
    base::JsonArray shape(t.dims().begin(), t.dims().end());
    members.push_back(
        {name, base::Json::object({{"dtype", name_for(t.dtype())},
                                   {"shape", std::move(shape)},
                                   {"data_offsets", base::Json::array({offset, offset + t.bytes()})}})});
    offset += t.bytes();
  }
  std::string text = header.dump();
  text.append(63 - (kPrefix + text.size() + 63) % 64, ' ');
  std::string prefix;
  for (size_t i = 0; i < kPrefix; ++i) prefix += static_cast<char>(text.size() >> 8 * i & 255);
  return prefix + text;
}

void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const std::vector<std::pair<std::string, std::string>>& metadata) {
  const std::vector<size_t> order = safetensors_order(tensors);
  base::AtomicFile file(path);
  file.write(safetensors_header(tensors, order, metadata));
  for (const size_t i : order) {
    const Tensor& t = tensors[i].second;
    file.write({reinterpret_cast<const char*>(t.raw()), static_cast<size_t>(t.bytes())});
  }
  file.commit();
}

}  // namespace trireme::model
