// Which types the numbers of text have: of JSON lines and of CSV.
#pragma once

#include <cstdint>

namespace trireme::data {

enum class TextNumbers : uint8_t {
  narrow,  ///< i64 where whole, else f32: what models are trained on
  exact,   ///< i64 where whole, u64 past it, else f64: rows that are carried through keep their numbers
};

}  // namespace trireme::data
