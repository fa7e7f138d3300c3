// Which types the numbers of text have: of JSON lines and of CSV.
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::data {

enum class TextNumbers : uint8_t {
  narrow,  ///< i64 where whole, else f32: what models are trained on
  exact,   ///< i64 where whole, u64 past it, else f64: rows that are carried through keep their numbers
};

/// Digits alone, behind a minus or not; of any size.
bool is_whole_number(std::string_view text);

/// "01", "-00": an identifier rather than a number, which would lose its zeros.
bool has_leading_zero(std::string_view whole);

/// Whether the double next to a whole number gives it back: it has that value, or is written in these digits.
bool is_kept_by_double(std::string_view whole);

}  // namespace trireme::data
