// Durations and byte sizes as text.
#include <charconv>
#include <cmath>
#include <span>

#include "base/error.h"
#include "base/text/options.h"

namespace trireme::base {
namespace {

struct Unit {
  std::string_view name;
  int64_t scale;
};

// Largest unit first: a value is printed in the first unit that divides it.
constexpr Unit kTimeUnits[] = {{"h", 3'600'000'000'000}, {"m", 60'000'000'000}, {"s", 1'000'000'000},
                               {"ms", 1'000'000},        {"us", 1'000},         {"ns", 1}};
constexpr Unit kByteUnits[] = {{"TiB", int64_t{1} << 40},
                               {"GiB", int64_t{1} << 30},
                               {"MiB", int64_t{1} << 20},
                               {"KiB", int64_t{1} << 10},
                               {"", 1}};
constexpr Unit kByteUnitsRead[] = {
    {"TB", 1'000'000'000'000}, {"GB", 1'000'000'000}, {"MB", 1'000'000}, {"KB", 1'000}, {"B", 1}};

/// The number times the unit after it; -1 if the text has another form or the product does not fit.
int64_t scaled(std::string_view text, std::span<const Unit> units) {
  double number = 0;
  const auto [rest, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return -1;
  const std::string_view name(rest, static_cast<size_t>(text.data() + text.size() - rest));
  for (const Unit& unit : units) {
    if (unit.name != name) continue;
    // A whole number of units is computed in integers, so it stays exact beyond 2^53.
    int64_t whole = 0;
    if (std::from_chars(text.data(), rest, whole).ptr == rest) {
      return whole <= INT64_MAX / unit.scale ? whole * unit.scale : -1;
    }
    const double value = std::round(number * static_cast<double>(unit.scale));
    return value < 9.2e18 ? static_cast<int64_t>(value) : -1;
  }
  return -1;
}

std::string in_largest_unit(int64_t value, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (value % unit.scale == 0 && (value != 0 || unit.scale == 1))
      return concat(value / unit.scale, unit.name);
  }
  return concat(value);
}

}  // namespace

Duration parse_duration(std::string_view text) {
  const int64_t ns = text == "0" ? 0 : scaled(text, kTimeUnits);
  require(ns >= 0, "expected a duration such as 50ms, 1.5s or 2m, found '", text, "'");
  return {ns};
}

ByteSize parse_byte_size(std::string_view text) {
  int64_t bytes = scaled(text, kByteUnits);
  if (bytes < 0) bytes = scaled(text, kByteUnitsRead);
  require(bytes >= 0, "expected a size such as 4096, 512KiB or 2GiB, found '", text, "'");
  return {bytes};
}

std::string to_string(Duration duration) { return in_largest_unit(duration.ns, kTimeUnits); }
std::string to_string(ByteSize size) { return in_largest_unit(size.bytes, kByteUnits); }

}  // namespace trireme::base
