// The GGUF container: header, metadata, tensor directory, aligned tensor bytes.
#include "tensor/gguf/gguf_file.h"

#include <algorithm>
#include <array>

#include "base/files/file.h"
#include "tensor/gguf/byte_cursor.h"

namespace trireme::tensor {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr int64_t kDefaultAlignment = 32;
constexpr uint32_t kMostDims = 4;  // GGML_MAX_DIMS
constexpr size_t kMostName = 1024, kMostKey = 65535;

// GGML's type numbers, with the length of a block in elements and in bytes.
constexpr std::array<GgufType, 33> kTypes{{
    {0, "f32", 1, 4},         {1, "f16", 1, 2},         {2, "q4_0", 32, 18},      {3, "q4_1", 32, 20},
    {6, "q5_0", 32, 22},      {7, "q5_1", 32, 24},      {8, "q8_0", 32, 34},      {9, "q8_1", 32, 36},
    {10, "q2_k", 256, 84},    {11, "q3_k", 256, 110},   {12, "q4_k", 256, 144},   {13, "q5_k", 256, 176},
    {14, "q6_k", 256, 210},   {15, "q8_k", 256, 292},   {16, "iq2_xxs", 256, 66}, {17, "iq2_xs", 256, 74},
    {18, "iq3_xxs", 256, 98}, {19, "iq1_s", 256, 50},   {20, "iq4_nl", 32, 18},   {21, "iq3_s", 256, 110},
    {22, "iq2_s", 256, 82},   {23, "iq4_xs", 256, 136}, {24, "i8", 1, 1},         {25, "i16", 1, 2},
    {26, "i32", 1, 4},        {27, "i64", 1, 8},        {28, "f64", 1, 8},        {29, "iq1_m", 256, 56},
    {30, "bf16", 1, 2},       {34, "tq1_0", 256, 54},   {35, "tq2_0", 256, 66},   {39, "mxfp4", 32, 17},
    {40, "nvfp4", 64, 36},
}};

/// Reads past one value and returns its bytes.
GgufValue read_value(ByteCursor& at, std::string_view all) {
  GgufValue value;
  auto kind = at.number<uint32_t>();
  value.is_array = kind == static_cast<uint32_t>(GgufKind::array);
  if (value.is_array) {
    kind = at.number<uint32_t>();
    value.count = at.number<uint64_t>();
  }
  if (kind == static_cast<uint32_t>(GgufKind::array)) base::fail_unsupported("an array of arrays");
  if (kind > static_cast<uint32_t>(GgufKind::f64)) base::fail_unsupported("a value of type ", kind);
  value.kind = static_cast<GgufKind>(kind);
  const size_t begin = at.position(), each = gguf_bytes(value.kind);
  if (each > 0) {
    base::require(value.count <= at.left() / each, value.count, " values of ", each, " bytes where ",
                  at.left(), " bytes are left");
    at.take(value.count * each);
  } else {
    base::require(value.count <= at.left() / sizeof(uint64_t), value.count, " texts where ", at.left(),
                  " bytes are left");
    for (uint64_t i = 0; i < value.count; ++i) at.text();
  }
  value.bytes = all.substr(begin, at.position() - begin);
  if (value.kind == GgufKind::boolean) {
    const auto is_bad = [](char c) { return c != 0 && c != 1; };
    base::require(std::none_of(value.bytes.begin(), value.bytes.end(), is_bad),
                  "a boolean is neither 0 nor 1");
  }
  return value;
}

/// A tensor of the directory, and its offset in the data after the directory.
struct Listed {
  GgufTensor tensor;
  uint64_t offset = 0, bytes = 0;
};

Listed read_tensor(ByteCursor& at) {
  Listed listed;
  const std::string_view name = at.text();
  base::require(!name.empty() && name.size() <= kMostName, "a tensor's name of ", name.size(), " bytes");
  listed.tensor.name = std::string(name);
  try {
    const auto rank = at.number<uint32_t>();
    base::require(rank <= kMostDims, rank, " dimensions");
    for (uint32_t i = 0; i < rank; ++i) {
      const auto extent = at.number<uint64_t>();
      base::require(extent < uint64_t{1} << 56, "an extent of ", extent);
      listed.tensor.dims.insert(listed.tensor.dims.begin(), static_cast<int64_t>(extent));
    }
    listed.tensor.type = &gguf_type(at.number<uint32_t>());
    listed.offset = at.number<uint64_t>();
    const int64_t elements = element_count(listed.tensor.dims);
    const int64_t width = rank == 0 ? 1 : listed.tensor.dims.back();
    const int64_t row = listed.tensor.type->row_bytes(width);
    int64_t bytes = 0;
    base::require(width == 0 || !__builtin_mul_overflow(elements / width, row, &bytes), "rows of ", row,
                  " bytes, ", elements, " elements");
    listed.bytes = static_cast<uint64_t>(bytes);
  } catch (const base::Error& e) {
    throw e.with(base::concat("tensor '", name.substr(0, 120), "'"));
  }
  return listed;
}

/// Refuses tensors that overlap, are not aligned, or extend beyond the data.
void check_ranges(const std::vector<Listed>& list, size_t data_bytes, int64_t alignment) {
  std::vector<const Listed*> order;
  for (const Listed& l : list) {
    base::require(l.offset % static_cast<uint64_t>(alignment) == 0, "tensor '", l.tensor.name.substr(0, 120),
                  "' begins at byte ", l.offset, ", the alignment is ", alignment);
    base::require(l.offset <= data_bytes && l.bytes <= data_bytes - l.offset, "tensor '",
                  l.tensor.name.substr(0, 120), "' of ", l.bytes, " bytes from byte ", l.offset,
                  " on does not fit the ", data_bytes, " bytes of data");
    if (l.bytes > 0) order.push_back(&l);
  }
  std::sort(order.begin(), order.end(),
            [](const Listed* a, const Listed* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    base::require(order[i - 1]->offset + order[i - 1]->bytes <= order[i]->offset, "tensors overlap at byte ",
                  order[i]->offset);
  }
}

void check_names(const std::vector<GgufTensor>& tensors) {
  const auto twice =
      std::adjacent_find(tensors.begin(), tensors.end(),
                         [](const GgufTensor& a, const GgufTensor& b) { return a.name == b.name; });
  if (twice != tensors.end())
    base::fail_invalid("two tensors have one name: '", twice->name.substr(0, 120), "'");
}

uint32_t read_version(ByteCursor& at) {
  const auto version = at.number<uint32_t>();
  if (version == 2 || version == 3) return version;
  if (version >> 16 != 0) base::fail_unsupported("a GGUF file in big-endian byte order");
  base::fail_unsupported("GGUF version ", version, "; known: 2 and 3");
}

}  // namespace

int64_t GgufType::row_bytes(int64_t width) const {
  base::require(width >= 0 && width % elements == 0, "rows of ", width, " elements are no whole blocks of ",
                elements, " (", name, ")");
  int64_t total = 0;
  base::require(!__builtin_mul_overflow(width / elements, bytes, &total), "rows of ", width, " elements");
  return total;
}

const GgufType& gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes) {
    if (type.id == id) return type;
  }
  base::fail_unsupported("GGUF element type ", id);
}

const GgufType& gguf_type(std::string_view name) {
  for (const GgufType& type : kTypes) {
    if (type.name == name) return type;
  }
  base::fail_unsupported("GGUF element type '", name.substr(0, 40), "'");
}

bool is_gguf(std::string_view bytes) { return bytes.substr(0, kMagic.size()) == kMagic; }

GgufFile GgufFile::parse(std::string_view bytes, std::shared_ptr<const void> owner) {
  base::require(is_gguf(bytes), "not a GGUF file: it does not begin with 'GGUF'");
  ByteCursor at(bytes);
  at.take(kMagic.size());
  GgufFile file;
  file.owner_ = std::move(owner);
  file.metadata_.keep(file.owner_);
  file.version_ = read_version(at);
  const auto tensors = at.number<uint64_t>(), values = at.number<uint64_t>();
  // Each entry consumes bytes, so too large a count fails at the end of the file.
  for (uint64_t i = 0; i < values; ++i) {
    const std::string_view key = at.text();
    base::require(!key.empty() && key.size() <= kMostKey, "a metadata key of ", key.size(), " bytes");
    try {
      file.metadata_.add(key, read_value(at, bytes));
    } catch (const base::Error& e) {
      throw e.with(base::concat("metadata '", key.substr(0, 120), "'"));
    }
  }
  std::vector<Listed> list;
  for (uint64_t i = 0; i < tensors; ++i) list.push_back(read_tensor(at));
  const int64_t alignment = file.metadata_.integer("general.alignment", kDefaultAlignment);
  base::require(alignment > 0 && alignment % 8 == 0 && alignment <= 1 << 20, "an alignment of ", alignment);
  const size_t begin = (at.position() + static_cast<size_t>(alignment) - 1) / static_cast<size_t>(alignment) *
                       static_cast<size_t>(alignment);
  const std::string_view data = bytes.substr(std::min(begin, bytes.size()));
  check_ranges(list, data.size(), alignment);
  for (Listed& l : list) {
    const std::string_view part = data.substr(static_cast<size_t>(l.offset), static_cast<size_t>(l.bytes));
    l.tensor.bytes = std::as_bytes(std::span(part.data(), part.size()));
    file.tensors_.push_back(std::move(l.tensor));
  }
  std::sort(file.tensors_.begin(), file.tensors_.end(),
            [](const GgufTensor& a, const GgufTensor& b) { return a.name < b.name; });
  check_names(file.tensors_);
  return file;
}

GgufFile GgufFile::open(const std::string& path) {
  const auto file = base::MappedFile::open(path);
  try {
    return parse(file->text(), file);
  } catch (const base::Error& e) {
    throw e.with(base::concat("file '", path, "'"));
  }
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const GgufTensor& t, std::string_view n) { return t.name < n; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

}  // namespace trireme::tensor
