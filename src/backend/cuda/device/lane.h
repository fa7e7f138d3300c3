// What one thread of a launch may ask and do. Kernels are templates over a Lane: GpuLane on the device,
// HostLane (host_grid.h) where no device is.
#pragma once

#include <cstdint>
#ifndef __CUDACC__
#include <atomic>
#endif

#ifdef __CUDACC__
#define TRIREME_DEVICE __device__ __forceinline__
#else
#define TRIREME_DEVICE inline
#endif

namespace trireme::cuda {

inline constexpr int kWarp = 32;

/// What a launch asks of the device.
struct Launch {
  int64_t blocks = 1;
  int threads = 256;  ///< whole warps
  int64_t shared_bytes = 0;
};

#ifdef __CUDACC__
/// A thread of a one-dimensional launch, as the device knows it.
struct GpuLane {
  TRIREME_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  TRIREME_DEVICE int threads() const { return static_cast<int>(blockDim.x); }
  TRIREME_DEVICE int64_t block() const { return blockIdx.x; }
  TRIREME_DEVICE int64_t blocks() const { return gridDim.x; }
  /// Waits for all threads of the block; their shared memory is then seen by all.
  TRIREME_DEVICE void sync() const { __syncthreads(); }
  /// Adds one to a counter in device memory that other blocks count too, and returns what it was. What this
  /// block wrote before a sync() ahead of the call is then seen by blocks that count later; what they wrote
  /// by this one. Called by one thread; the others follow behind a sync().
  TRIREME_DEVICE int32_t arrive(int32_t* counter) const {
    __threadfence();
    const int32_t before = atomicAdd(counter, 1);
    __threadfence();
    return before;
  }
  /// The value of the lane whose number in the warp differs in the bits of `mask`. All lanes take part.
  template <class T>
  TRIREME_DEVICE T shuffle_xor(T value, int mask) const {
    return __shfl_xor_sync(0xffffffffu, value, mask);
  }
  /// The block's dynamic shared memory, 16-byte aligned.
  template <class T>
  TRIREME_DEVICE T* shared() const {
    extern __shared__ __align__(16) unsigned char memory[];
    return reinterpret_cast<T*>(memory);
  }
};
#endif

/// Combines a value over the block, the same bits in every thread: a butterfly in each warp, then over the
/// warps' results in their order. `scratch`: kWarp + 1 elements of shared memory that nobody reads meanwhile.
/// `combine` is commutative. The order depends on the block's size only.
template <class Lane, class T, class Combine>
TRIREME_DEVICE T block_reduce(const Lane& lane, T value, T* scratch, Combine combine) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = combine(value, lane.shuffle_xor(value, mask));
  const int warps = (lane.threads() + kWarp - 1) / kWarp;
  if (warps == 1) return value;
  if (lane.thread() % kWarp == 0) scratch[lane.thread() / kWarp] = value;
  lane.sync();
  if (lane.thread() == 0) {
    T total = scratch[0];
    for (int w = 1; w < warps; ++w) total = combine(total, scratch[w]);
    scratch[kWarp] = total;
  }
  lane.sync();
  value = scratch[kWarp];
  lane.sync();  // scratch may be written again
  return value;
}

/// Reports bad data at `fault` (ir::RunArgs), unless somebody did before. `fault` may be null.
TRIREME_DEVICE void report_fault(int64_t* fault, int64_t step, int64_t value) {
  if (fault == nullptr) return;
#ifdef __CUDACC__
  const auto word = static_cast<unsigned long long>(step + 1);
  if (atomicCAS(reinterpret_cast<unsigned long long*>(fault), 0ull, word) == 0ull) fault[1] = value;
#else
  int64_t none = 0;
  if (std::atomic_ref<int64_t>(fault[0]).compare_exchange_strong(none, step + 1)) fault[1] = value;
#endif
}

/// Bytes of `scratch` above, and where what follows it in shared memory may begin.
inline constexpr int64_t kReduceScratchBytes = 2 * kWarp * static_cast<int64_t>(sizeof(double));

}  // namespace trireme::cuda
