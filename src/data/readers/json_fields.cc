// Infers the types of JSON values, widened from row to row.
#include "data/readers/json_fields.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace trireme::data {

using base::Json;
using base::require;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

bool is_i64(const Json& value) {
  return value.is_integer() && (value.as_double() < 0 || value.as_uint() <= INT64_MAX);
}

namespace {

/// Collects the numbers of nested arrays, and the extents. False: not rectangular, or not only numbers.
bool collect(const Json& value, size_t depth, Dims& dims, std::vector<const Json*>& out) {
  if (value.is_number()) {
    if (depth != dims.size()) return false;
    out.push_back(&value);
    return true;
  }
  if (!value.is_array()) return false;
  const auto count = static_cast<int64_t>(value.size());
  if (depth == dims.size()) {
    if (!out.empty()) return false;  // nested deeper than the items before
    dims.push_back(count);
  }
  if (dims[depth] != count) return false;
  return std::all_of(value.as_array().begin(), value.as_array().end(),
                     [&](const Json& item) { return collect(item, depth + 1, dims, out); });
}

/// An array of numbers, or one number, which has no extents.
struct Numbers {
  Dims dims;
  std::vector<const Json*> values;
};

/// Nothing where the value is not a full array of numbers.
std::optional<Numbers> numbers_of(const Json& value) {
  Numbers found;
  if (!collect(value, 0, found.dims, found.values)) return std::nullopt;
  if (tensor::element_count(found.dims) != static_cast<int64_t>(found.values.size())) return std::nullopt;
  return found;
}

DType number_type(const Json& value, TextNumbers numbers) {
  if (is_i64(value)) return DType::i64;
  if (numbers == TextNumbers::narrow) return DType::f32;
  return value.is_integer() ? DType::u64 : DType::f64;
}

/// The type that holds numbers of both.
DType wider(DType a, DType b) {
  if (a == b) return a;
  for (const DType real : {DType::f64, DType::f32}) {
    if (a == real || b == real) return real;
  }
  return DType::u64;
}

bool fits_number(const Json& value, DType dtype) {
  if (dtype == DType::i64) return is_i64(value);
  if (dtype == DType::u64) return value.is_integer() && value.as_double() >= 0;
  return dtype == DType::f32 || dtype == DType::f64;
}

template <class T>
T number_as(const Json& value) {
  if constexpr (std::is_same_v<T, int64_t>) {
    return value.as_int();
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return value.as_uint();
  } else {
    return static_cast<T>(value.as_double());
  }
}

/// An undefined tensor where a number is not of the type.
Tensor tensor_of(const Numbers& numbers, DType dtype) {
  const auto fits_type = [&](const Json* number) { return fits_number(*number, dtype); };
  if (!std::all_of(numbers.values.begin(), numbers.values.end(), fits_type)) return {};
  Tensor t = Tensor::empty(dtype, numbers.dims);
  const auto fill = [&]<class T>(T) {
    std::transform(numbers.values.begin(), numbers.values.end(), t.mutable_data<T>().begin(),
                   [](const Json* number) { return number_as<T>(*number); });
  };
  if (dtype == DType::i64) fill(int64_t{});
  if (dtype == DType::u64) fill(uint64_t{});
  if (dtype == DType::f32) fill(float{});
  if (dtype == DType::f64) fill(double{});
  return t;
}

}  // namespace

Field json_field(const std::string& name, const Json& value, TextNumbers numbers) {
  Field field{name};
  if (value.is_bool()) {
    field.dtype = DType::boolean;
  } else if (const std::optional<Numbers> found = numbers_of(value)) {
    field.dtype = DType::i64;
    for (const Json* number : found->values) field.dtype = wider(field.dtype, number_type(*number, numbers));
    field.shape = tensor::Shape::of(found->dims);
    const bool rounds = numbers == TextNumbers::exact && field.dtype == DType::f64 && has_long_number(value);
    if (rounds) field = {name, FieldKind::text};
  } else {
    field.kind = FieldKind::text;
  }
  return field;
}

void widen(Field& into, const Field& other) {
  if (into.kind != other.kind) {
    into = {into.name, FieldKind::text};
    return;
  }
  if (into.dtype != other.dtype) {
    const bool numbers = into.dtype != DType::boolean && other.dtype != DType::boolean;
    if (!numbers) {
      into = {into.name, FieldKind::text};
      return;
    }
    into.dtype = wider(into.dtype, other.dtype);
  }
  if (into.shape.rank() != other.shape.rank()) {
    into = {into.name, FieldKind::text};
    return;
  }
  for (size_t d = 0; d < into.shape.rank(); ++d) {
    if (!(into.shape[d] == other.shape[d])) into.shape[d] = tensor::Dim::unknown();
  }
}

Tensor json_tensor(const Field& field, const Json& value) {
  Tensor t;
  if (field.dtype == DType::boolean) {
    if (value.is_bool()) t = Tensor::scalar(value.as_bool());
  } else if (const std::optional<Numbers> numbers = numbers_of(value)) {
    t = tensor_of(*numbers, field.dtype);
  }
  require(t.defined(), "member is not ", tensor::name_of(field.dtype), " as in the rows before: '",
          field.name, "'");
  return t;
}

bool has_long_number(const Json& value) {
  constexpr double kAllKept = 9007199254740992;  // 2^53: smaller ones are doubles
  if (value.is_integer()) return std::abs(value.as_double()) >= kAllKept && !is_kept_by_double(value.dump());
  return value.is_array() && std::any_of(value.as_array().begin(), value.as_array().end(), has_long_number);
}

std::string json_text(const Json& value) { return value.is_string() ? value.as_string() : value.dump(); }

}  // namespace trireme::data
