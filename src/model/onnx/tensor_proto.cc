// Converts ONNX tensors: element type codes, raw data without a copy, typed fields, external files.
#include "model/onnx/tensor_proto.h"

#include <array>
#include <charconv>
#include <cstring>
#include <protozero/pbf_reader.hpp>

#include "base/files/file.h"
#include "base/memory/slab.h"
#include "tensor/element_bytes.h"

namespace trireme::model::onnx {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using tensor::DType;
using tensor::Tensor;

struct TypeRow {
  int32_t code;
  DType dtype;
};

// The codes of TensorProto.DataType and their element types.
constexpr std::array<TypeRow, tensor::kDTypeCount> kTypes{{
    {1, DType::f32},         {2, DType::u8},        {3, DType::i8},          {4, DType::u16},
    {5, DType::i16},         {6, DType::i32},       {7, DType::i64},         {9, DType::boolean},
    {10, DType::f16},        {11, DType::f64},      {12, DType::u32},        {13, DType::u64},
    {16, DType::bf16},       {17, DType::f8e4m3fn}, {18, DType::f8e4m3fnuz}, {19, DType::f8e5m2},
    {20, DType::f8e5m2fnuz}, {21, DType::u4},       {22, DType::i4},         {23, DType::f4e2m1},
    {24, DType::f8e8m0},     {25, DType::u2},       {26, DType::i2},
}};

/// The field of TensorProto that holds the values of an element type if raw_data does not.
enum class Field : uint32_t {
  float_data = 4,
  int32_data = 5,
  int64_data = 7,
  double_data = 10,
  uint64_data = 11
};

Field field_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return Field::float_data;
    case DType::f64: return Field::double_data;
    case DType::i64: return Field::int64_data;
    case DType::u32:
    case DType::u64: return Field::uint64_data;
    default: return Field::int32_data;
  }
}

/// Appends typed values to the tensor's bytes, but never beyond their end.
class Filler {
 public:
  explicit Filler(Tensor& t) : at_(t.mutable_raw()), left_(t.bytes()) {}

  /// Stores the low `size` bytes of `value` (x86 and ARM are little-endian, as is ONNX).
  void put(const void* value, size_t size) {
    base::require(left_ >= static_cast<int64_t>(size), "tensor has more values than its shape");
    std::memcpy(at_, value, size);
    at_ += size;
    left_ -= static_cast<int64_t>(size);
  }
  int64_t left() const { return left_; }

 private:
  std::byte* at_;
  int64_t left_;
};

void fill_integers(pbf_reader& r, Filler& out, size_t size) {
  const auto put = [&](int64_t v) { out.put(&v, size); };
  if (r.wire_type() == pbf_wire_type::varint) return put(r.get_int64());
  base::require(r.wire_type() == pbf_wire_type::length_delimited, "tensor values have the wrong wire type");
  for (int64_t v : r.get_packed_int64()) put(v);
}

void fill_fixed(pbf_reader& r, Filler& out, size_t size) {
  if (r.wire_type() == pbf_wire_type::fixed32 && size == 4) {
    const float v = r.get_float();
    return out.put(&v, 4);
  }
  if (r.wire_type() == pbf_wire_type::fixed64 && size == 8) {
    const double v = r.get_double();
    return out.put(&v, 8);
  }
  base::require(r.wire_type() == pbf_wire_type::length_delimited, "tensor values have the wrong wire type");
  const protozero::data_view view = r.get_view();
  if (view.size() > 0) out.put(view.data(), view.size());
}

/// The fewest encoded bytes of `elements` values, in order to refuse huge shapes before allocating memory.
int64_t least_encoded_bytes(DType dtype, int64_t elements) {
  const Field field = field_of(dtype);
  if (field == Field::float_data || field == Field::double_data) return bytes_of(dtype, elements);
  return tensor::bits_of(dtype) < 8 ? bytes_of(dtype, elements) : elements;
}

Tensor from_typed_fields(const TensorProto& proto, DType dtype) {
  const int64_t elements = tensor::element_count(proto.dims);
  base::require(least_encoded_bytes(dtype, elements) <= static_cast<int64_t>(proto.message.size()),
                "tensor of shape ", tensor::to_string(proto.dims), " has too few values");
  Tensor t = Tensor::empty(dtype, proto.dims);
  Filler out(t);
  const Field field = field_of(dtype);
  // For sub-byte types, each int32 value holds one byte (two or four elements).
  const size_t size = static_cast<size_t>(std::max(1, tensor::bits_of(dtype) / 8));
  pbf_reader r(proto.message.data(), proto.message.size());
  while (r.next()) {
    if (r.tag() != static_cast<uint32_t>(field)) {
      r.skip();
    } else if (field == Field::float_data || field == Field::double_data) {
      fill_fixed(r, out, size);
    } else {
      fill_integers(r, out, size);
    }
  }
  base::require(out.left() == 0, "tensor of shape ", tensor::to_string(proto.dims), " has too few values");
  return t;
}

/// Any nonzero byte counts as true, but C++ bools must hold 0 or 1.
Tensor normal_bools(Tensor t) {
  bool is_clean = true;
  for (int64_t i = 0; i < t.bytes(); ++i) is_clean = is_clean && static_cast<uint8_t>(t.raw()[i]) <= 1;
  if (is_clean) return t;
  Tensor clean = t.clone();
  for (int64_t i = 0; i < t.bytes(); ++i) {
    clean.mutable_raw()[i] = t.raw()[i] == std::byte{0} ? std::byte{0} : std::byte{1};
  }
  return clean;
}

/// A copy at an aligned address. Files put bytes anywhere, so that most weights of some files are copied:
/// those of some megabytes to huge pages, which take one fault where 512 would be taken.
Tensor aligned_copy(const Tensor& t) {
  constexpr int64_t kWorthHugePages = 4 << 20;
  if (t.bytes() < kWorthHugePages) return t.clone();
  const auto bytes = static_cast<size_t>(t.bytes());
  const auto lease = std::make_shared<base::MemoryLease>(base::MemoryUse::tensors, t.bytes());
  const std::shared_ptr<void> memory = base::map_memory(bytes);
  std::memcpy(memory.get(), t.raw(), bytes);
  const std::shared_ptr<const void> owner(memory.get(), [lease, memory](const void*) {});
  return Tensor::view(t.dtype(), t.dims(), {static_cast<const std::byte*>(memory.get()), bytes}, owner);
}

Tensor from_bytes(const TensorProto& proto, DType dtype, std::string_view bytes,
                  std::shared_ptr<const void> owner) {
  const auto span = std::as_bytes(std::span(bytes.data(), bytes.size()));
  const int64_t wanted = bytes_of(dtype, tensor::element_count(proto.dims));
  base::require(wanted == static_cast<int64_t>(bytes.size()), "tensor of type ", tensor::name_of(dtype),
                tensor::to_string(proto.dims), " needs ", wanted, " bytes, the file has ", bytes.size());
  const size_t alignment = static_cast<size_t>(std::max(1, tensor::bits_of(dtype) / 8));
  const bool is_aligned = reinterpret_cast<uintptr_t>(bytes.data()) % alignment == 0;
  Tensor t = Tensor::view(dtype, proto.dims, span, std::move(owner));
  if (!is_aligned) t = aligned_copy(t);
  return dtype == DType::boolean ? normal_bools(std::move(t)) : t;
}

uint64_t parse_number(std::string_view text, std::string_view key) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  base::require(error == std::errc() && end == text.data() + text.size(), "external data has a bad ", key,
                " '", text, "'");
  return value;
}

/// Opens each external file once; files must be inside the model's directory.
const base::MappedFile& open_external(TensorSource& source, std::string_view location) {
  base::require(!source.directory.empty(), "external data '", location, "' needs a model on disk");
  auto at = source.files.find(location);
  if (at == source.files.end()) {
    const std::string path = base::safe_join(source.directory, location);
    at = source.files.emplace(std::string(location), base::MappedFile::open(path)).first;
    source.external_left.emplace(std::string(location), at->second->size());
  }
  return *at->second;
}

Tensor from_external(const TensorProto& proto, DType dtype, TensorSource& source) {
  std::string_view location;
  uint64_t offset = 0;
  std::optional<uint64_t> length;
  for (const StringPair& pair : proto.external_data) {
    if (pair.key == "location") location = pair.value;
    if (pair.key == "offset") offset = parse_number(pair.value, "offset");
    if (pair.key == "length") length = parse_number(pair.value, "length");
  }
  const std::string_view file = open_external(source, location).text();
  const int64_t elements = tensor::element_count(proto.dims);
  Tensor& known = source.external[{std::string(location), offset, dtype, elements}];
  if (known.defined()) return known.reshaped(proto.dims);
  base::require(offset <= file.size(), "external data '", location, "' starts at ", offset, ", past its end ",
                file.size());
  const uint64_t rest = file.size() - offset;
  const int64_t needed = bytes_of(dtype, elements);
  const uint64_t size = length.value_or(static_cast<uint64_t>(needed));
  base::require(size <= rest, "external data '", location, "' has ", rest, " bytes from offset ", offset,
                ", wanted ", size);
  uint64_t& left = source.external_left.find(location)->second;
  base::require(size <= left, "external data '", location, "': tensors that overlap want more than its ",
                file.size(), " bytes");
  known = from_bytes(proto, dtype, file.substr(offset, size), source.files.find(location)->second);
  left -= size;
  return known;
}

Tensor make_unnamed(const TensorProto& proto, TensorSource& source) {
  base::require(proto.dims.size() <= kMaxRank, "the tensor has ", proto.dims.size(), " dimensions");
  const DType dtype = dtype_from_onnx(proto.data_type);
  if (proto.is_external) return from_external(proto, dtype, source);
  if (proto.raw_data) return from_bytes(proto, dtype, *proto.raw_data, source.owner);
  Tensor t = from_typed_fields(proto, dtype);
  return dtype == DType::boolean ? normal_bools(std::move(t)) : t;
}

}  // namespace

DType dtype_from_onnx(int64_t data_type) {
  for (const TypeRow& row : kTypes) {
    if (row.code == data_type) return row.dtype;
  }
  switch (data_type) {
    case 0: base::fail_invalid("a tensor has no element type");
    case kOnnxString: base::fail_unsupported("string tensors are not supported");
    case 14:
    case 15: base::fail_unsupported("complex tensors are not supported");
    case 27:
    case 28: base::fail_unsupported("6-bit float tensors are not supported");
    default: base::fail_invalid("unknown ONNX element type ", data_type);
  }
}

int32_t dtype_to_onnx(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.code;
  }
  base::fail(base::ErrorCode::internal, "element type without an ONNX code: ", tensor::name_of(dtype));
}

Tensor make_tensor(const TensorProto& proto, TensorSource& source) {
  try {
    return make_unnamed(proto, source);
  } catch (const protozero::exception& e) {
    base::fail_invalid("tensor '", proto.name, "' is malformed: ", e.what());
  } catch (const base::Error& e) {
    throw e.with(base::concat("tensor '", proto.name, "'"));
  }
}

Tensor make_dense(const SparseTensorProto& proto, TensorSource& source) {
  const Tensor values = make_tensor(proto.values, source);
  const Tensor indices = make_tensor(proto.indices, source);
  base::require(indices.dtype() == DType::i64, "sparse tensor indices must be i64");
  // A few bytes of a file may demand any dense size, so each byte allows this many bytes of dense size.
  constexpr int64_t kDensePerByte = 4096;
  source.dense_left += (values.bytes() + indices.bytes()) * kDensePerByte;
  const int64_t elements = tensor::element_count(proto.dims);
  const int64_t size = tensor::element_bytes(values.dtype());
  base::require(elements <= source.dense_left / size, "sparse tensor of shape ",
                tensor::to_string(proto.dims), " is too large when dense: it has ", values.elements(),
                " values");
  source.dense_left -= elements * size;
  const int64_t count = values.elements();
  const int64_t rank = static_cast<int64_t>(proto.dims.size());
  const bool is_linear = indices.rank() == 1;  // one flat index per value, else one row of coordinates
  base::require(indices.elements() == (is_linear ? count : count * rank), "sparse tensor has ", count,
                " values and ", indices.elements(), " indices");
  Tensor dense = Tensor::zeros(values.dtype(), proto.dims);
  const auto ids = indices.data<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    int64_t flat = is_linear ? ids[static_cast<size_t>(i)] : 0;
    for (int64_t d = 0; !is_linear && d < rank; ++d) {
      const int64_t at = ids[static_cast<size_t>(i * rank + d)];
      base::require(at >= 0 && at < proto.dims[static_cast<size_t>(d)], "sparse index is out of range");
      flat = flat * proto.dims[static_cast<size_t>(d)] + at;
    }
    base::require(flat >= 0 && flat < elements, "sparse index is out of range");
    std::memcpy(dense.mutable_raw() + flat * size, values.raw() + i * size, static_cast<size_t>(size));
  }
  return dense;
}

Tensor read_tensor_file(const std::string& path) {
  const auto file = base::MappedFile::open(path);
  TensorSource source{.owner = file, .directory = {}};
  try {
    return make_tensor(parse_tensor(file->text()), source);
  } catch (const base::Error& e) {
    throw e.with(base::concat("file '", path, "'"));
  }
}

std::string read_tensor_name(const std::string& path) {
  const auto file = base::MappedFile::open(path);
  try {
    return std::string(parse_tensor(file->text()).name);
  } catch (const base::Error& e) {
    throw e.with(base::concat("file '", path, "'"));
  }
}

}  // namespace trireme::model::onnx
