// Which whole numbers of text a double gives back.
#include "data/readers/text_numbers.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>

namespace trireme::data {
namespace {

constexpr size_t kMostDigits = 310;  // of the largest double

std::string_view without_zeros(std::string_view digits) {
  while (digits.ends_with('0')) digits.remove_suffix(1);
  return digits;
}

/// The digits of the shortest text that reads back to the number.
std::string shortest_digits(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
  std::string digits;
  for (const char* at = text; at != end && *at != 'e'; ++at) {
    if (*at >= '0' && *at <= '9') digits += *at;
  }
  return digits;
}

}  // namespace

bool is_whole_number(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool has_leading_zero(std::string_view whole) {
  if (whole.starts_with('-')) whole.remove_prefix(1);
  return whole.size() > 1 && whole[0] == '0';
}

bool is_kept_by_double(std::string_view whole) {
  if (whole.starts_with('-')) whole.remove_prefix(1);
  whole.remove_prefix(std::min(whole.find_first_not_of('0'), whole.size()));
  if (whole.size() < 16) return true;  // less than 2^53
  if (whole.size() > kMostDigits) return false;
  double value = 0;
  std::from_chars(whole.data(), whole.data() + whole.size(), value);
  char exact[kMostDigits + 2];
  std::snprintf(exact, sizeof exact, "%.0f", value);
  return whole == exact || without_zeros(whole) == without_zeros(shortest_digits(value));
}

}  // namespace trireme::data
