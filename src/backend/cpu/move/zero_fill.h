// Zeros over large memory: past the caches where the whole would not fit them.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// Sets `bytes` bytes at y to zero over the team. From 8 MiB on by stores that do not read the lines first
/// nor keep them in the caches.
void zero_fill(void* y, int64_t bytes, base::ThreadPool& pool);

}  // namespace trireme::cpu
