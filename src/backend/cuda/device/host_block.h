// The threads of one block of a launch that runs on the host, as fibers that take turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

namespace trireme::cuda {

/// Runs one block after another on the same fibers. Threads change over at barriers and shuffles only. The
/// order of turns is reversed after each meeting, so that a missing barrier shows as a wrong result.
class HostBlock {
 public:
  using Body = void (*)(const void* what, int thread);

  HostBlock();
  ~HostBlock();
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;

  /// Makes room for blocks of this size, so that run() allocates nothing.
  void reserve(int threads, int64_t shared_bytes);
  /// body(what, thread) for all threads. Throws internal for a meeting that not all reach and for bytes
  /// written past the shared memory; else what a thread threw first.
  void run(int threads, int64_t shared_bytes, Body body, const void* what);
  /// The same for threads that never meet, one after another without fibers.
  void run_apart(int threads, Body body, const void* what);

  /// 16-byte aligned; filled with a pattern before each block.
  std::byte* shared() { return shared_; }
  void sync(int thread) { meet(thread, Wait::block); }
  /// What the lane of the warp gave whose number differs in the bits of `mask`.
  uint64_t shuffle(int thread, uint64_t value, int mask);

 private:
  enum class Wait : uint8_t { none, warp, block, done };
  struct Fiber;
  struct Fibers;

  static void enter(unsigned high, unsigned low, int thread);
  [[noreturn]] void live(int thread);
  void resume(int thread);
  void meet(int thread, Wait wait);
  bool turn();
  void release();
  bool all_wait(int first, int last, Wait wait) const;
  void let_go(int first, int last);

  std::unique_ptr<Fibers> fibers_;
  std::vector<Wait> waits_;
  std::vector<std::byte> memory_;       ///< shared memory and what guards it
  std::vector<uint64_t> exchange_;      ///< two values a thread: shuffles take turns
  std::vector<uint8_t> exchange_turn_;  ///< which of the two a thread's next shuffle uses
  std::byte* shared_ = nullptr;
  int threads_ = 0;
  bool reverse_ = false, meets_ = true;
  Body body_ = nullptr;
  const void* what_ = nullptr;
  std::exception_ptr failure_;
};

}  // namespace trireme::cuda
