// Quotients rounded up, and sizes and addresses rounded up to whole lines of the cache.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace trireme::cpu {

/// The alignment of packed weights and workspaces in bytes: a line of the cache.
constexpr size_t kAlignment = 64;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// `bytes`, at least zero, rounded up to whole lines.
template <std::integral T>
constexpr T align64(T bytes) {
  return (bytes + 63) / 64 * 64;
}

/// The first line that begins at `p` or behind it.
inline char* align64(void* p) {
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t{63});
}

}  // namespace trireme::cpu
