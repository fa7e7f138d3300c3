// The toolkit's conversion to 8-bit floats, one instruction from sm_89 on, for float8_kernels.h where the
// device compiler reads it.
#pragma once

#include <cuda_fp8.h>

namespace trireme::cuda {

/// Codes of two floats, the first in the low byte; beyond the range: the largest; NaN: 0x7f.
__device__ __forceinline__ uint32_t float8_pair(float x, float y, bool e5m2) {
  return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}

}  // namespace trireme::cuda
