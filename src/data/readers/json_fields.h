// Members of JSON objects as fields: what type a value has, what holds them all, and values of that type.
#pragma once

#include <string>

#include "base/text/json.h"
#include "data/dataset/dataset.h"

namespace trireme::data {

/// What one JSON value says about its field: numbers are i64 or f32, rectangular arrays of numbers tensors,
/// strings and all else text.
Field json_field(const std::string& name, const base::Json& value);

/// Widens `into` until it holds what `other` says too: i64 to f32, extents to unknown, anything to text.
void widen(Field& into, const Field& other);

/// The value in the field's element type. Throws invalid_argument if it is none.
tensor::Tensor json_tensor(const Field& field, const base::Json& value);

/// A string's content; the JSON of anything else.
std::string json_text(const base::Json& value);

/// True for integers that an i64 holds.
bool is_i64(const base::Json& value);

}  // namespace trireme::data
