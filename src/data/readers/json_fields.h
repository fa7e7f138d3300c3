// Members of JSON objects as fields: what type a value has, what holds them all, and values of that type.
#pragma once

#include <string>

#include "base/text/json.h"
#include "data/dataset/dataset.h"
#include "data/readers/text_numbers.h"

namespace trireme::data {

/// What one JSON value says about its field: numbers have the types of `numbers`, rectangular arrays of
/// numbers are tensors, strings and all else text. With exact numbers, an array that would be f64 is text
/// where that rounds a whole one.
Field json_field(const std::string& name, const base::Json& value, TextNumbers numbers);

/// Widens `into` until it holds what `other` says too: whole numbers to f32 or f64 where the other is such,
/// i64 to u64, extents to unknown, anything to text. In a field of u64 a negative number is an error of its
/// row.
void widen(Field& into, const Field& other);

/// The value in the field's element type. Throws invalid_argument if it is none.
tensor::Tensor json_tensor(const Field& field, const base::Json& value);

/// A string's content; the JSON of anything else.
std::string json_text(const base::Json& value);

/// Whether a number, or one in an array of them, is whole and kept by no double.
bool has_long_number(const base::Json& value);

/// True for integers that an i64 holds.
bool is_i64(const base::Json& value);

}  // namespace trireme::data
