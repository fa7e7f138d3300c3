// Values of a column as a graph's input takes them.
#include "batch/models/column_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/text/shortened.h"
#include "data/readers/json_fields.h"

namespace trireme::batch {
namespace {

using tensor::DType;
using tensor::Tensor;

template <class To, class From>
To exactly(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    base::require(value == From(0) || value == From(1),
                  "a number that is neither 0 nor 1 where booleans are wanted");
    return value != From(0);
  } else if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    base::require(std::in_range<To>(value), value, " is no ", tensor::name_of(tensor::dtype_of<To>()));
    return static_cast<To>(value);
  } else if constexpr (std::is_integral_v<To>) {
    const auto wide = static_cast<double>(value);
    // The upper limit as a double may be one past the integer's own.
    const bool fits = wide >= static_cast<double>(std::numeric_limits<To>::min()) &&
                      wide < std::ldexp(1.0, std::numeric_limits<To>::digits) && std::trunc(wide) == wide;
    base::require(fits, wide, " is no ", tensor::name_of(tensor::dtype_of<To>()));
    return static_cast<To>(wide);
  } else if constexpr (std::is_arithmetic_v<To>) {
    return static_cast<To>(static_cast<double>(value));
  } else {
    return To(static_cast<float>(value));
  }
}

/// std::in_range takes no bool.
template <class From>
auto number(From value) {
  if constexpr (std::is_same_v<From, bool>) {
    return static_cast<int>(value);
  } else if constexpr (std::is_arithmetic_v<From>) {
    return value;
  } else {
    return static_cast<float>(value);
  }
}

constexpr size_t kShownText = 40;

template <class T>
std::optional<Tensor> parsed(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return std::nullopt;
  return Tensor::scalar(value);
}

/// The array of numbers that a text holds as JSON.
Tensor array_in(const std::string& text) {
  const base::Json value = base::parse_json(text, {.size_bytes = SIZE_MAX});
  data::Field field = data::json_field("", value, data::TextNumbers::exact);
  if (field.kind == data::FieldKind::text) field = {.name = "", .dtype = DType::f64};
  return data::json_tensor(field, value);
}

/// The number, or the array, that a text is. Columns of text and JSON are of text where a single row among
/// those that tell of them is no number, or where numbers would not keep it exactly.
Tensor number_in(const std::string& text) {
  if (const auto whole = parsed<int64_t>(text)) return *whole;
  if (const auto whole = parsed<uint64_t>(text)) return *whole;
  if (const auto real = parsed<double>(text)) return *real;
  try {
    if (text.starts_with('[')) return array_in(text);
  } catch (const base::Error&) {  // the row has no numbers, which is said below
  }
  base::fail_invalid("the row's value is the text '", base::shortened(text, kShownText),
                     "', the model takes numbers");
}

}  // namespace

Tensor converted(const Tensor& from, DType type) {
  if (from.dtype() == type) return from;
  Tensor out = Tensor::empty(type, from.dims());
  tensor::visit_dtype(from.dtype(), [&]<class From>(From) {
    tensor::visit_dtype(type, [&]<class To>(To) {
      const std::span<const From> values = from.data<From>();
      const std::span<To> to = out.mutable_data<To>();
      for (size_t i = 0; i < values.size(); ++i) to[i] = exactly<To>(number(values[i]));
    });
  });
  return out;
}

tensor::Dims fitted(const tensor::Dims& dims, const tensor::Shape& wanted) {
  if (!wanted.has_rank()) return dims;
  bool fits = wanted.rank() == dims.size();
  for (size_t d = 0; fits && d < dims.size(); ++d)
    fits = !wanted[d].is_static() || wanted[d].value() == dims[d];
  if (fits) return dims;
  int64_t elements = 1;
  for (const int64_t d : dims) elements *= d;
  base::require(wanted.elements() == elements, "a row has the shape ", tensor::to_string(dims),
                ", the model takes ", wanted.to_string());
  return wanted.to_dims();
}

Tensor row_value(const BoundInput& input, const data::Column& column, int64_t row) {
  try {
    if (const base::Error* error = column.error_at(row)) throw *error;
    base::require(!column.is_missing_at(row), "the row has no value");
    const bool is_text = column.field.kind == data::FieldKind::text;
    base::require(is_text || column.field.kind == data::FieldKind::tensor, "the column holds ",
                  data::to_string(column.field.kind), ", the model takes numbers");
    const Tensor value =
        is_text ? number_in(column.strings[static_cast<size_t>(row)]) : column.tensor_at(row);
    return converted(value, input.dtype).reshaped(fitted(value.dims(), input.row));
  } catch (const base::Error& e) {
    throw e.with("input '" + input.input + "', column '" + input.column + "'");
  }
}

std::optional<Tensor> all_values(const BoundInput& input, const data::Column& column) {
  if (!column.numbers.defined() || !column.is_missing.empty()) return std::nullopt;
  try {
    const tensor::Dims& all = column.numbers.dims();
    tensor::Dims dims = fitted({all.begin() + 1, all.end()}, input.row);
    dims.insert(dims.begin(), all[0]);
    return converted(column.numbers, input.dtype).reshaped(dims);
  } catch (const base::Error&) {
    return std::nullopt;  // the rows are looked at one by one, and those that are wrong say so
  }
}

}  // namespace trireme::batch
