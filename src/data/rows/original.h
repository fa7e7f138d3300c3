// A column's own form in the library that read it: cut and joined along with the values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

using Original = std::shared_ptr<const void>;  ///< an arrow::Array with its memory; null: there is none

/// Rows [begin, begin + count) of it, sharing its memory.
Original slice_original(const Original& from, int64_t begin, int64_t count);

/// One after another; null where one of them is, or where their types differ.
Original join_originals(const std::vector<Original>& parts);

/// The value of a row as JSON.
std::string original_json(const Original& from, int64_t row);

}  // namespace trireme::data
