// Launches a kernel of lane.h on a stream. For .cu files only: nvcc compiles them for GPUs; in a build
// without the toolkit the same files are C++ whose launches run on the stand-in.
#pragma once

#include <algorithm>

#ifdef __CUDACC__
#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/runtime.cuh"
#else
#include "backend/cuda/device/emulated_stream.h"
#endif
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/lane.h"

namespace trireme::cuda {

/// Threads of a block that the compiler keeps registers for: the kernel's kMostThreads, or 512.
template <class Kernel>
constexpr int most_threads() {
  if constexpr (requires { Kernel::kMostThreads; }) return Kernel::kMostThreads;
  return 512;
}

/// Blocks of a multiprocessor at once that the compiler keeps registers for: the kernel's kBlocksAtOnce,
/// or 1.
template <class Kernel>
constexpr int blocks_at_once() {
  if constexpr (requires { Kernel::kBlocksAtOnce; }) return Kernel::kBlocksAtOnce;
  return 1;
}

/// Shared memory of a block that every GPU from sm_80 on has: sm_86, sm_89 and sm_120 have no more.
inline constexpr int64_t kMostSharedBytes = int64_t{99} << 10;

/// Blocks that fill the device `waves` times at most, fewer for little work.
inline int64_t blocks_for(const CudaStream& stream, int64_t work, int waves = 8) {
  return std::clamp<int64_t>(work, 1, int64_t{stream.multiprocessors()} * waves);
}

#ifndef __CUDACC__
/// What a GPU refuses, refused on the stand-in too: no blocks, too many, blocks that are too large.
inline void require_launchable(const char* name, const Launch& grid, int most_threads) {
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
  base::check(grid.blocks > 0 && grid.blocks <= kMostBlocks, name, ": a launch of ", grid.blocks, " blocks");
  base::check(grid.threads <= most_threads, name, ": a block of ", grid.threads, " threads, compiled for ",
              most_threads);
  base::check(grid.shared_bytes <= kMostSharedBytes, name, ": ", grid.shared_bytes,
              " bytes of shared memory, a block has ", kMostSharedBytes);
}
#endif

#ifdef __CUDACC__
template <class Kernel>
__global__ void __launch_bounds__(most_threads<Kernel>(), blocks_at_once<Kernel>())
    run_kernel(const __grid_constant__ Kernel kernel) {
  kernel(GpuLane{});
}
#endif

/// One launch; `name` is for errors. More than 48 KiB of shared memory are asked for by themselves.
template <class Kernel>
void launch(tensor::Stream& stream, const char* name, const Launch& grid, const Kernel& kernel) {
  static_assert(sizeof(Kernel) <= 32764, "bytes of arguments that a launch may have");
  static_assert(most_threads<Kernel>() <= 1024, "threads of a block");
#ifdef __CUDACC__
  if (grid.shared_bytes > (48 << 10)) {
    check_cuda(cudaFuncSetAttribute(run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(grid.shared_bytes)),
               name);
  }
  run_kernel<<<static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.threads),
               static_cast<size_t>(grid.shared_bytes), queue_of(stream)>>>(kernel);
  check_launch(name);
#else
  require_launchable(name, grid, most_threads<Kernel>());
  static_cast<EmulatedStream&>(stream).launch([grid, kernel](HostGrid& host) { host.run(grid, kernel); });
#endif
}

}  // namespace trireme::cuda
