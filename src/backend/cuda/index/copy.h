// Launchers of copies along steps, fills and padding: elements are moved, not looked at.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tensor/device.h"
#include "tensor/shape.h"

namespace trireme::cuda {

inline constexpr size_t kCopyRank = 8;  ///< after adjacent dimensions were merged

/// y[y_base + sum i_d y_steps_d] = x[x_base + sum i_d x_steps_d] for every index i inside `extent`, in units
/// of `unit_bytes` (1, 2, 4, 8 or 16).
struct StridedCopy {
  std::vector<int64_t> extent, x_steps, y_steps;
  int64_t x_base = 0, y_base = 0;
  int64_t unit_bytes = 4;
};
/// The same copy with dimensions merged and in units as wide as runs, steps and places allow. The addresses
/// of x and y are multiples of 16.
StridedCopy widened(StridedCopy copy);
/// nullopt if the device takes a widened copy.
std::optional<std::string> refuse_copy(const StridedCopy& copy);
/// One launch of a widened copy: through tiles in shared memory where the fast dimensions of x and y differ.
void copy_strided(tensor::Stream& stream, const StridedCopy& copy, const void* x, void* y);

/// y [bytes] = `unit` repeated; unit_bytes 1, 2, 4 or 8.
void fill(tensor::Stream& stream, void* y, int64_t bytes, uint64_t unit, int64_t unit_bytes);
inline void fill_zero(tensor::Stream& stream, void* y, int64_t bytes) { fill(stream, y, bytes, 0, 1); }

enum class PadMode : uint8_t { constant, edge, reflect, wrap };
/// y[i] = x[i - before], beyond x by the mode; *value (device memory, or null: zero) in mode constant.
struct PadArgs {
  const void *x = nullptr, *value = nullptr;
  void* y = nullptr;
  tensor::Dims x_dims, y_dims;
  std::vector<int64_t> before;
  PadMode mode = PadMode::constant;
  int64_t unit_bytes = 4;
};
void pad(tensor::Stream& stream, const PadArgs& args);

}  // namespace trireme::cuda
