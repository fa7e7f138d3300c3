// Infers the types of JSON values, widened from row to row.
#include "data/readers/json_fields.h"

#include <algorithm>

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

/// The array as a tensor of `dtype`, or an undefined one if it is not a full array of numbers. f64 stands for
/// the type of the numbers found, i64 or f32.
Tensor array_tensor(const Json& value, DType dtype) {
  Dims dims;
  std::vector<const Json*> numbers;
  if (!collect(value, 0, dims, numbers)) return {};
  if (tensor::element_count(dims) != static_cast<int64_t>(numbers.size())) return {};
  const bool all_integers =
      std::all_of(numbers.begin(), numbers.end(), [](const Json* n) { return is_i64(*n); });
  const bool integers = dtype == DType::f64 ? all_integers : dtype == DType::i64;
  if (integers && !all_integers) return {};
  Tensor t = Tensor::empty(integers ? DType::i64 : DType::f32, dims);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (integers) {
      t.mutable_data<int64_t>()[i] = numbers[i]->as_int();
    } else {
      t.mutable_data<float>()[i] = static_cast<float>(numbers[i]->as_double());
    }
  }
  return t;
}

}  // namespace

Field json_field(const std::string& name, const Json& value) {
  Field field{name};
  if (value.is_number()) {
    field.dtype = is_i64(value) ? DType::i64 : DType::f32;
  } else if (value.is_bool()) {
    field.dtype = DType::boolean;
  } else if (const Tensor t = value.is_array() ? array_tensor(value, DType::f64) : Tensor{}; t.defined()) {
    field.dtype = t.dtype();
    field.shape = tensor::Shape::of(t.dims());
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
    into.dtype = DType::f32;
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
  if (field.dtype == DType::boolean && value.is_bool()) t = Tensor::scalar(value.as_bool());
  if (field.dtype == DType::i64 && is_i64(value)) t = Tensor::scalar(value.as_int());
  if (field.dtype == DType::f32 && value.is_number())
    t = Tensor::scalar(static_cast<float>(value.as_double()));
  if (value.is_array()) t = array_tensor(value, field.dtype);
  require(t.defined(), "member is not ", tensor::name_of(field.dtype), " as in the rows before: '",
          field.name, "'");
  return t;
}

std::string json_text(const Json& value) { return value.is_string() ? value.as_string() : value.dump(); }

}  // namespace trireme::data
