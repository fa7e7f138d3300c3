// 16 bytes of memory as words.
#pragma once

#include <cstdint>

#include "backend/cuda/device/lane.h"

namespace trireme::cuda {

struct alignas(16) Words {
  uint32_t word[4];
};

/// 16 bytes that no thread reads again soon: they need no place in the first-level cache. Nobody writes them
/// while the launch runs, nor while one runs that it overlaps.
TRIREME_DEVICE Words constant_words(const void* at) {
#ifdef __CUDACC__
  Words w;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
      : "l"(at));
  return w;
#else
  return *static_cast<const Words*>(at);
#endif
}
/// The same of what an earlier launch wrote.
TRIREME_DEVICE Words stream_words(const void* at) {
#ifdef __CUDACC__
  Words w;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
               : "l"(at));
  return w;
#else
  return *static_cast<const Words*>(at);
#endif
}

}  // namespace trireme::cuda
