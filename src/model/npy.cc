// NumPy's .npy format: header, byte order, memory order.
#include "model/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/files/file.h"
#include "tensor/element_bytes.h"

namespace trireme::model {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxRank = 64;  // as in NumPy 2

struct TypeRow {
  std::string_view code;  // kind and bytes, as in NumPy's type strings
  DType dtype;
};
constexpr std::array<TypeRow, 12> kTypes{{
    {"f4", DType::f32},
    {"f8", DType::f64},
    {"f2", DType::f16},
    {"i1", DType::i8},
    {"u1", DType::u8},
    {"i2", DType::i16},
    {"u2", DType::u16},
    {"i4", DType::i32},
    {"u4", DType::u32},
    {"i8", DType::i64},
    {"u8", DType::u64},
    {"b1", DType::boolean},
}};

struct Header {
  DType dtype = DType::f32;
  bool is_big_endian = false;
  bool is_column_major = false;
  Dims dims;
};

/// The text after `'key':` in the header's Python dictionary, without leading blanks.
std::string_view after_key(std::string_view dict, std::string_view key) {
  for (char quote : {'\'', '"'}) {
    const std::string quoted = quote + std::string(key) + quote;
    const size_t at = dict.find(quoted);
    if (at == std::string_view::npos) continue;
    dict.remove_prefix(at + quoted.size());
    const size_t start = dict.find_first_not_of(" :");
    return start == std::string_view::npos ? std::string_view() : dict.substr(start);
  }
  base::fail_invalid("npy header has no '", key, "'");
}

void read_descr(std::string_view text, Header& header) {
  base::require(!text.empty() && (text[0] == '\'' || text[0] == '"'), "npy records are not supported");
  const size_t end = text.find(text[0], 1);
  base::require(end != std::string_view::npos && end >= 4, "npy header has a bad element type");
  const std::string_view code = text.substr(2, end - 2);
  base::require(std::string_view("<>|=").find(text[1]) != std::string_view::npos,
                "npy header has a bad byte order");
  header.is_big_endian = text[1] == '>';
  for (const TypeRow& row : kTypes) {
    if (row.code == code) {
      header.dtype = row.dtype;
      return;
    }
  }
  base::fail_unsupported("npy element type '", code.substr(0, 20), "' is not supported");
}

Dims read_dims(std::string_view text) {
  base::require(!text.empty() && text[0] == '(', "npy header has a bad shape");
  Dims dims;
  text.remove_prefix(1);
  while (true) {
    const size_t start = text.find_first_not_of(" ,");
    base::require(start != std::string_view::npos, "npy header has an open shape");
    text.remove_prefix(start);
    if (text[0] == ')') return dims;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    base::require(error == std::errc() && value >= 0 && dims.size() < kMaxRank, "npy header has a bad shape");
    dims.push_back(value);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.starts_with("L")) text.remove_prefix(1);  // written by Python 2
  }
}

Header read_header(std::string_view dict) {
  Header header;
  read_descr(after_key(dict, "descr"), header);
  header.is_column_major = after_key(dict, "fortran_order").starts_with("True");
  header.dims = read_dims(after_key(dict, "shape"));
  return header;
}

Tensor swap_bytes(const Tensor& t) {
  Tensor out = t.clone();
  const int64_t size = element_bytes(t.dtype());
  for (int64_t i = 0; i < t.bytes(); i += size)
    std::reverse(out.mutable_raw() + i, out.mutable_raw() + i + size);
  return out;
}

/// Column-major bytes -> row-major tensor.
Tensor to_row_major(const Tensor& t) {
  Tensor out = Tensor::empty(t.dtype(), t.dims());
  const int64_t size = element_bytes(t.dtype());
  const size_t rank = t.rank();
  std::array<int64_t, kMaxRank> at{}, stride{1};
  for (size_t d = 1; d < rank; ++d) stride[d] = stride[d - 1] * t.dims()[d - 1];
  int64_t source = 0;
  for (int64_t i = 0; i < t.elements(); ++i) {
    std::memcpy(out.mutable_raw() + i * size, t.raw() + source * size, static_cast<size_t>(size));
    for (size_t d = rank; d-- > 0;) {
      source += stride[d];
      if (++at[d] < t.dims()[d]) break;
      source -= stride[d] * t.dims()[d];
      at[d] = 0;
    }
  }
  return out;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

Tensor parse_npy(std::string_view bytes, std::shared_ptr<const void> owner) {
  base::require(bytes.size() >= 10 && bytes.starts_with(kMagic), "not a npy file");
  const auto version = static_cast<uint8_t>(bytes[6]);
  base::require(version >= 1 && version <= 3, "npy format ", int{version}, " is not supported");
  const size_t length_bytes = version == 1 ? 2 : 4;
  const size_t prefix = 8 + length_bytes;
  base::require(bytes.size() >= prefix, "npy file is truncated");
  const uint64_t length = little_endian(bytes.substr(8, length_bytes));
  base::require(length <= bytes.size() - prefix, "npy header is truncated");
  const Header header = read_header(bytes.substr(prefix, length));
  const std::string_view data = bytes.substr(prefix + length);
  const int64_t wanted = bytes_of(header.dtype, tensor::element_count(header.dims));
  base::require(static_cast<int64_t>(data.size()) >= wanted, "npy file has ", data.size(),
                " bytes of data, shape ", tensor::to_string(header.dims), " needs ", wanted);
  const auto span = std::as_bytes(std::span(data.data(), static_cast<size_t>(wanted)));
  Tensor t = Tensor::view(header.dtype, header.dims, span, std::move(owner));
  if (reinterpret_cast<uintptr_t>(data.data()) % static_cast<size_t>(element_bytes(header.dtype)) != 0)
    t = t.clone();
  if (header.is_big_endian) t = swap_bytes(t);
  if (header.is_column_major && t.rank() > 1) t = to_row_major(t);
  if (t.dtype() == DType::boolean) {
    t = t.clone();
    for (int64_t i = 0; i < t.bytes(); ++i)
      t.mutable_raw()[i] = t.raw()[i] == std::byte{0} ? std::byte{0} : std::byte{1};
  }
  return t;
}

Tensor read_npy(const std::string& path) {
  const auto file = base::MappedFile::open(path);
  try {
    return parse_npy(file->text(), file);
  } catch (const base::Error& e) {
    throw e.with(base::concat("file '", path, "'"));
  }
}

void write_npy(const std::string& path, const Tensor& t) {
  std::string_view code;
  for (const TypeRow& row : kTypes) {
    if (row.dtype == t.dtype()) code = row.code;
  }
  if (code.empty()) base::fail_unsupported("NumPy has no element type ", tensor::name_of(t.dtype()));
  std::string shape;
  for (int64_t d : t.dims()) shape += std::to_string(d) + ",";
  std::string header = base::concat("{'descr': '", element_bytes(t.dtype()) == 1 ? '|' : '<', code,
                                    "', 'fortran_order': False, 'shape': (", shape, "), }");
  // Prefix and header together fill whole blocks of 64 bytes, so that the data is aligned in a mapped file.
  header.append(64 - (10 + header.size() + 1) % 64, ' ');
  header += '\n';
  base::require(header.size() <= 0xffff, "npy header is too long");
  base::AtomicFile file(path);
  file.write(kMagic);
  const char rest[4] = {1, 0, static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  file.write(std::string_view(rest, 4));
  file.write(header);
  file.write(std::string_view(reinterpret_cast<const char*>(t.raw()), static_cast<size_t>(t.bytes())));
  file.commit();
}

}  // namespace trireme::model
