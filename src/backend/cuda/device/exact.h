// Arithmetic with one rounding an operation, where the CPU's bits are wanted: the compiler may not contract
// it.
#pragma once

#include <cmath>

#include "backend/cuda/device/lane.h"

namespace trireme::cuda::exact {

#ifdef __CUDA_ARCH__
TRIREME_DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
TRIREME_DEVICE float plus(float a, float b) { return __fadd_rn(a, b); }
TRIREME_DEVICE float divided(float a, float b) { return __fdiv_rn(a, b); }
TRIREME_DEVICE float root(float a) { return __fsqrt_rn(a); }
#else
TRIREME_DEVICE float times(float a, float b) { return a * b; }
TRIREME_DEVICE float plus(float a, float b) { return a + b; }
TRIREME_DEVICE float divided(float a, float b) { return a / b; }
TRIREME_DEVICE float root(float a) { return sqrtf(a); }
#endif

}  // namespace trireme::cuda::exact
