// Kinds of characters that Python's methods of strings ask about.
#pragma once

namespace trireme::data::jinja {

bool is_alpha(char32_t code);
bool is_decimal(char32_t code);  ///< digits of all scripts
bool is_digit(char32_t code);    ///< those, superscripts, and digits in circles
bool is_numeric(char32_t code);  ///< those, fractions, Roman numerals, and numbers written with one letter
inline bool is_alnum(char32_t code) { return is_alpha(code) || is_numeric(code); }

}  // namespace trireme::data::jinja
