// Reads and writes the dictionary in a .npy header.
#include "tensor/npy_header.h"

#include <array>
#include <charconv>

#include "base/error.h"
#include "tensor/element_bytes.h"

namespace trireme::tensor {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);

struct TypeRow {
  std::string_view code;  // kind and number of bytes, as in NumPy's type strings
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

void read_descr(std::string_view text, NpyHeader& header) {
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
    base::require(error == std::errc() && value >= 0 && dims.size() < kMaxNpyRank,
                  "npy header has a bad shape");
    dims.push_back(value);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.starts_with("L")) text.remove_prefix(1);  // written by Python 2
  }
}

NpyHeader read_header(std::string_view dict) {
  NpyHeader header;
  read_descr(after_key(dict, "descr"), header);
  header.is_column_major = after_key(dict, "fortran_order").starts_with("True");
  header.dims = read_dims(after_key(dict, "shape"));
  return header;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

size_t npy_header_bytes(std::string_view head) {
  if (head.size() < 10 || !head.starts_with(kMagic)) return 0;
  const auto version = static_cast<uint8_t>(head[6]);
  base::require(version >= 1 && version <= 3, "npy format ", int{version}, " is not supported");
  const size_t length_bytes = version == 1 ? 2 : 4;
  base::require(head.size() >= 8 + length_bytes, "npy file is truncated");
  return 8 + length_bytes + little_endian(head.substr(8, length_bytes));
}

NpyHeader parse_npy_header(std::string_view file) {
  const size_t bytes = npy_header_bytes(file);
  base::require(bytes > 0, "not a npy file");
  base::require(bytes <= file.size(), "npy header is truncated");
  const size_t prefix = static_cast<uint8_t>(file[6]) == 1 ? 10 : 12;
  NpyHeader header = read_header(file.substr(prefix, bytes - prefix));
  header.bytes = bytes;
  return header;
}

std::string npy_header(DType dtype, const Dims& dims) {
  std::string_view code;
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) code = row.code;
  }
  if (code.empty()) base::fail_unsupported("NumPy has no element type ", name_of(dtype));
  std::string shape;
  for (int64_t d : dims) shape += std::to_string(d) + ",";
  std::string header = base::concat("{'descr': '", element_bytes(dtype) == 1 ? '|' : '<', code,
                                    "', 'fortran_order': False, 'shape': (", shape, "), }");
  // Prefix and header fill a multiple of 64 bytes, so that the data is aligned in a mapped file.
  header.append(64 - (10 + header.size() + 1) % 64, ' ');
  header += '\n';
  base::require(header.size() <= 0xffff, "npy header is too long");
  const char rest[4] = {1, 0, static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  return std::string(kMagic) + std::string(rest, 4) + header;
}

}  // namespace trireme::tensor
