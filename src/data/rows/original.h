// A column's own form in the library that read it: cut and joined along with the values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::data {

using Original = std::shared_ptr<const void>;  ///< an arrow::Array; null: there is none

/// Rows [begin, begin + count) of it, sharing its memory.
Original slice_original(const Original& from, int64_t begin, int64_t count);

/// One after another; null where one of them is, or where their types differ.
Original join_originals(const std::vector<Original>& parts);

}  // namespace trireme::data
