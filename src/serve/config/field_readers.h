// Reads single values of a model's configuration: enumerations, counts, times, tensor types.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "serve/config/pbtxt.h"
#include "serve/infer/wire_tensor.h"

namespace trireme::serve {

/// An enumeration's place among `names`, in the order of their numbers: protobuf takes name or number. Throws
/// invalid_argument with the choices.
size_t read_choice(const TextField& field, std::span<const std::string_view> names);

/// TYPE_FP32 and so on, by name or number.
WireType read_data_type(const TextField& field);

/// A count. Throws invalid_argument if it is negative.
int64_t read_natural(const TextField& field);

/// Microseconds, at most a century: what the protocol's uint64 may hold beyond it is for ever too, and can be
/// counted in nanoseconds.
int64_t read_microseconds(const TextField& field);

/// An integer or a decimal, with an `f` behind it or not; true and false are 1 and 0.
double read_number(const TextField& field);

/// Throws invalid_argument where a field that is no list is there twice, or two of those that exclude each
/// other, at any depth: one of them would be lost.
void check_once(const std::vector<TextField>& fields);

}  // namespace trireme::serve
