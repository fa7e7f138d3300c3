// Internal: marks a region of a file as compiled for one instruction-set level, without any compiler flag on
// the file.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

// Everything between BEGIN and END must have internal linkage (or be the region's one exported table), so
// that the linker never picks a wide copy of an inline function for a narrow machine. Standard headers are
// included before the region.
#if defined(__clang__)
#define TRIREME_PRAGMA(text) _Pragma(#text)
#define TRIREME_CLANG_TARGET(list) \
  TRIREME_PRAGMA(clang attribute push(__attribute__((target(list))), apply_to = function))
#define TRIREME_TARGET_AVX512_BEGIN TRIREME_CLANG_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")
#define TRIREME_TARGET_VNNI_BEGIN \
  TRIREME_CLANG_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")
#define TRIREME_TARGET_AMX_BEGIN \
  TRIREME_CLANG_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,amx-tile,amx-int8,amx-bf16")
#define TRIREME_TARGET_BF16_BEGIN \
  TRIREME_CLANG_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")
#define TRIREME_TARGET_AVX2_BEGIN TRIREME_CLANG_TARGET("avx2,fma,f16c")
#define TRIREME_TARGET_END _Pragma("clang attribute pop")
#else
#define TRIREME_TARGET_AVX512_BEGIN \
  _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512bw,avx512vl,avx512dq,avx2,fma\")")
#define TRIREME_TARGET_VNNI_BEGIN \
  _Pragma("GCC push_options")     \
      _Pragma("GCC target(\"avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma\")")
#define TRIREME_TARGET_AMX_BEGIN       \
  _Pragma("GCC push_options") _Pragma( \
      "GCC target(\"avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,amx-tile,amx-int8,amx-bf16\")")
#define TRIREME_TARGET_BF16_BEGIN \
  _Pragma("GCC push_options")     \
      _Pragma("GCC target(\"avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma\")")
#define TRIREME_TARGET_AVX2_BEGIN _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,f16c\")")
#define TRIREME_TARGET_END _Pragma("GCC pop_options")
#endif

#define TRIREME_INLINE static inline __attribute__((always_inline))
