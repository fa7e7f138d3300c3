// Launches a kernel of lane.h on a stream; for .cu files only.
#pragma once

#include <algorithm>

#include <cuda_runtime.h>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/lane.h"

namespace trireme::cuda {

/// Threads of a block that the compiler keeps registers for: the kernel's kMostThreads, or 512.
template <class Kernel>
constexpr int most_threads() {
  if constexpr (requires { Kernel::kMostThreads; }) return Kernel::kMostThreads;
  return 512;
}

template <class Kernel>
__global__ void __launch_bounds__(most_threads<Kernel>()) run_kernel(const __grid_constant__ Kernel kernel) {
  kernel(GpuLane{});
}

/// Blocks that fill the device `waves` times at most, fewer for little work.
inline int64_t blocks_for(const CudaStream& stream, int64_t work, int waves = 8) {
  return std::clamp<int64_t>(work, 1, int64_t{stream.multiprocessors()} * waves);
}

/// One launch; `name` is for errors.
template <class Kernel>
void launch(tensor::Stream& stream, const char* name, const Launch& grid, const Kernel& kernel) {
  run_kernel<<<static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.threads),
               static_cast<size_t>(grid.shared_bytes), queue_of(stream)>>>(kernel);
  check_launch(name);
}

}  // namespace trireme::cuda
