// Runs a kernel of lane.h on the host: every thread of a block is a fiber, barriers and shuffles are where
// they meet. For tests without a device: it finds wrong indices and missing barriers, not speed.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include <ucontext.h>

#include "backend/cuda/lane.h"
#include "base/error.h"

namespace trireme::cuda {

/// One block while it runs. Threads take turns and change over at barriers and shuffles only. The order of
/// turns is reversed after each meeting, so that a missing barrier shows as a wrong result.
class HostBlock {
 public:
  HostBlock(int threads, int64_t shared_bytes)
      : threads_(threads),
        shared_(static_cast<size_t>(shared_bytes) + 16, std::byte{0xcd}),
        fibers_(static_cast<size_t>(threads)),
        exchange_(static_cast<size_t>(threads)) {}

  void run(const std::function<void(int)>& body) {
    body_ = &body;
    for (int t = 0; t < threads_; ++t) start(t);
    while (turn()) {
    }
  }

  std::byte* shared() {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(shared_.data()) + 15) & ~uintptr_t{15});
  }
  void sync(int thread) { meet(thread, Wait::block); }
  uint64_t shuffle(int thread, uint64_t value, int mask) {
    exchange_[static_cast<size_t>(thread)] = value;
    meet(thread, Wait::warp);
    const int other = thread / kWarp * kWarp + ((thread % kWarp) ^ mask);
    base::check(other < threads_, "a shuffle reads lane ", other, " of a block of ", threads_);
    const uint64_t out = exchange_[static_cast<size_t>(other)];
    meet(thread, Wait::warp);
    return out;
  }

 private:
  enum class Wait : uint8_t { none, warp, block, done };
  struct Fiber {
    ucontext_t context;
    std::vector<std::byte> stack;
    Wait wait = Wait::none;
  };

  void start(int thread) {
    constexpr size_t kStackBytes = 64 << 10;
    Fiber& f = fibers_[static_cast<size_t>(thread)];
    f.stack.resize(kStackBytes);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = kStackBytes;
    f.context.uc_link = &scheduler_;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&f.context, reinterpret_cast<void (*)()>(&HostBlock::enter), 3, static_cast<int>(self >> 32),
                static_cast<int>(self & 0xffffffffu), thread);
  }
  static void enter(int high, int low, int thread) {
    auto* self = reinterpret_cast<HostBlock*>((uintptr_t{static_cast<unsigned>(high)} << 32) |
                                              uintptr_t{static_cast<unsigned>(low)});
    (*self->body_)(thread);
    self->fibers_[static_cast<size_t>(thread)].wait = Wait::done;
  }
  void meet(int thread, Wait wait) {
    Fiber& f = fibers_[static_cast<size_t>(thread)];
    f.wait = wait;
    swapcontext(&f.context, &scheduler_);
  }

  /// Runs every thread that may run once; false when all are done.
  bool turn() {
    bool ran = false, any_left = false;
    for (int i = 0; i < threads_; ++i) {
      const int t = reverse_ ? threads_ - 1 - i : i;
      Fiber& f = fibers_[static_cast<size_t>(t)];
      if (f.wait == Wait::done) continue;
      any_left = true;
      if (f.wait != Wait::none) continue;
      swapcontext(&scheduler_, &f.context);
      ran = true;
    }
    if (!any_left) return false;
    if (!ran) release();
    return true;
  }

  /// Everyone waits: lets those go whose meeting is complete.
  void release() {
    reverse_ = !reverse_;
    bool released = false;
    for (int first = 0; first < threads_; first += kWarp) {
      if (!all_wait(first, std::min(first + kWarp, threads_), Wait::warp)) continue;
      let_go(first, std::min(first + kWarp, threads_));
      released = true;
    }
    if (released) return;
    base::check(all_wait(0, threads_, Wait::block),
                "a barrier or shuffle that not all threads of the block (warp) reach");
    let_go(0, threads_);
  }
  bool all_wait(int first, int last, Wait wait) const {
    for (int t = first; t < last; ++t) {
      if (fibers_[static_cast<size_t>(t)].wait != wait) return false;
    }
    return true;
  }
  void let_go(int first, int last) {
    for (int t = first; t < last; ++t) fibers_[static_cast<size_t>(t)].wait = Wait::none;
  }

  int threads_;
  bool reverse_ = false;
  std::vector<std::byte> shared_;
  std::vector<Fiber> fibers_;
  std::vector<uint64_t> exchange_;
  ucontext_t scheduler_;
  const std::function<void(int)>* body_ = nullptr;
};

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

/// kernel(lane) for every thread of the launch, block after block. Throws internal for a barrier that some
/// threads do not reach, and for a block that does not fill its warps.
template <class Kernel>
void run_on_host(const Launch& launch, const Kernel& kernel) {
  base::check(launch.threads > 0 && launch.threads % kWarp == 0, "a block of ", launch.threads,
              " threads does not fill its warps");
  for (int64_t b = 0; b < launch.blocks; ++b) {
    HostBlock block(launch.threads, launch.shared_bytes);
    block.run([&](int thread) { kernel(HostLane{&block, thread, launch.threads, b, launch.blocks}); });
  }
}

}  // namespace trireme::cuda
