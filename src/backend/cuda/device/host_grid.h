// Runs a kernel of lane.h on the host: every thread of a block is a fiber, barriers and shuffles are where
// they meet. For tests without a device: it finds wrong indices and missing barriers, not speed.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/host_alignment.h"
#include "backend/cuda/device/host_block.h"
#include "backend/cuda/device/lane.h"
#include "base/error.h"
#include "base/threads/thread_pool.h"

namespace trireme::cuda {

/// A thread of a launch on the host.
struct HostLane {
  HostBlock* in;
  int thread_index, block_threads;
  int64_t block_index, grid_blocks;

  int thread() const { return thread_index; }
  int threads() const { return block_threads; }
  int64_t block() const { return block_index; }
  int64_t blocks() const { return grid_blocks; }
  void sync() const { in->sync(thread_index); }
  int32_t arrive(int32_t* counter) const {
    return std::atomic_ref<int32_t>(*counter).fetch_add(1, std::memory_order_acq_rel);
  }
  template <class T>
  T shuffle_xor(T value, int mask) const {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = in->shuffle(thread_index, bits, mask);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
  }
  template <class T>
  T* shared() const {
    return reinterpret_cast<T*>(in->shared());
  }
};

/// True for kernels whose threads never meet and use no shared memory (`static constexpr bool kIndependent =
/// true`): they run as plain loops.
template <class Kernel>
constexpr bool is_independent() {
  if constexpr (requires { Kernel::kIndependent; }) return Kernel::kIndependent;
  return false;
}

/// Runs launches, one after another; keeps the fibers of its blocks. With a pool several blocks run at a
/// time.
class HostGrid {
 public:
  explicit HostGrid(base::ThreadPool* pool = nullptr)
      : pool_(pool), blocks_(pool == nullptr ? 1 : static_cast<size_t>(pool->size())) {}

  /// kernel(lane) for every thread of the launch. Throws internal for a barrier that some threads do not
  /// reach, for bytes written past the shared memory, for an access at an address that its type does not
  /// allow, and for a block that does not fill its warps.
  template <class Kernel>
  void run(const Launch& launch, const Kernel& kernel) {
    base::check(launch.threads > 0 && launch.threads % kWarp == 0, "a block of ", launch.threads,
                " threads does not fill its warps");
    const Call<Kernel> call{kernel, launch};
    const auto run_block = [&call](HostBlock& block, int64_t b) { call.run(block, b); };
    if (blocks_.size() == 1 || launch.blocks < 2) {
      for (int64_t b = 0; b < launch.blocks; ++b) run_block(blocks_[0], b);
      return;
    }
    std::atomic<int64_t> next{0};
    std::vector<std::exception_ptr>& failures = failures_;
    failures.assign(blocks_.size(), nullptr);
    // Which of them run is not fixed; that none allocates later is.
    for (HostBlock& block : blocks_) block.reserve(launch.threads, launch.shared_bytes);
    pool_->run(static_cast<int64_t>(blocks_.size()), [&](int64_t worker) {
      const auto w = static_cast<size_t>(worker);
      try {
        for (int64_t b; (b = next.fetch_add(1)) < launch.blocks;) run_block(blocks_[w], b);
      } catch (...) {
        failures[w] = std::current_exception();
      }
    });
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }

 private:
  template <class Kernel>
  struct Call {
    const Kernel& kernel;
    const Launch& launch;

    struct Block {
      const Call& call;
      HostBlock& block;
      int64_t index;
    };
    static void thread(const void* what, int t) {
      const auto& at = *static_cast<const Block*>(what);
      at.call.kernel(HostLane{&at.block, t, at.call.launch.threads, at.index, at.call.launch.blocks});
    }
    void run(HostBlock& block, int64_t index) const {
      const Block at{*this, block, index};
      take_misaligned_access();  // what the host did before is its own business
      if constexpr (is_independent<Kernel>()) {
        block.run_apart(launch.threads, &thread, &at);
      } else {
        block.run(launch.threads, launch.shared_bytes, &thread, &at);
      }
      const std::string misaligned = take_misaligned_access();
      base::check(misaligned.empty(), misaligned);
    }
  };

  base::ThreadPool* pool_;
  std::vector<HostBlock> blocks_;  ///< one for each that may run at a time
  std::vector<std::exception_ptr> failures_;
};

/// One launch with fibers of its own, for tests of kernels.
template <class Kernel>
void run_on_host(const Launch& launch, const Kernel& kernel) {
  HostGrid().run(launch, kernel);
}

}  // namespace trireme::cuda
