// Launches that begin while the one before them is still at work: what does not depend on it, such as reading
// weights, is then done when it ends. Programmatic dependent launches, on sm_90 and newer.
#pragma once

#include <cstdlib>
#include <string_view>

#include "backend/cuda/device/launch.h"

namespace trireme::cuda {

/// Blocks of the next launch may begin, if it overlaps, as soon as all blocks of this one have called this or
/// ended.
template <class Lane>
TRIREME_DEVICE void let_next_begin(const Lane&) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Waits for the end of all launches before this one. What they wrote is then seen.
template <class Lane>
TRIREME_DEVICE void wait_for_earlier(const Lane&) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#ifdef __CUDACC__
/// Whether the environment's TRIREME_CUDA_OVERLAP=1 asks for it, and the device runs code of the kernel that
/// waits for the launch before: code for sm_90 and newer.
template <class Kernel>
bool can_overlap() {
  static const bool can = [] {
    const char* wish = std::getenv("TRIREME_CUDA_OVERLAP");
    if (wish == nullptr || std::string_view(wish) != "1") return false;
    cudaFuncAttributes a{};
    check_cuda(cudaFuncGetAttributes(&a, run_kernel<Kernel>), "reading what a kernel was compiled for");
    return a.ptxVersion >= 90 && a.binaryVersion >= 90;
  }();
  return can;
}
#endif

/// As launch(), of a kernel whose threads all call wait_for_earlier() before they touch what another launch
/// writes, or write what another launch reads. The stand-in runs one launch after the other.
template <class Kernel>
void launch_overlapping(tensor::Stream& stream, const char* name, const Launch& grid, const Kernel& kernel) {
#ifdef __CUDACC__
  if (can_overlap<Kernel>() && grid.shared_bytes <= (48 << 10)) {
    cudaLaunchAttribute overlaps{};
    overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlaps.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
    config.blockDim = dim3(static_cast<unsigned>(grid.threads));
    config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
    config.stream = queue_of(stream);
    config.attrs = &overlaps;
    config.numAttrs = 1;
    return check_cuda(cudaLaunchKernelEx(&config, run_kernel<Kernel>, kernel), name);
  }
#endif
  launch(stream, name, grid, kernel);
}

}  // namespace trireme::cuda
