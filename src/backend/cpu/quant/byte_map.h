// Bytes through a table: what a function of one 8-bit tensor is.
#pragma once

#include <array>
#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

using ByteTable = std::array<uint8_t, 256>;

/// y[i] = table[x[i]] for n bytes; y may be x.
void map_bytes(const ByteTable& table, const uint8_t* x, uint8_t* y, int64_t n, base::ThreadPool& pool);

}  // namespace trireme::cpu
