// Runs the threads of one block on the host, as fibers that take turns.
#include "backend/cuda/device/host_block.h"

#include <algorithm>
#include <csetjmp>
#include <cstring>

#include <sys/mman.h>
#include <ucontext.h>

#include "backend/cuda/device/lane.h"
#include "base/error.h"

// Sanitizers can follow stacks through ucontext only. Elsewhere _longjmp is used, which is ten times as fast
// because it leaves the signal mask unchanged.
#define TRIREME_JUMPS 1
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#undef TRIREME_JUMPS
#define TRIREME_JUMPS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef TRIREME_JUMPS
#define TRIREME_JUMPS 0
#endif
#endif

namespace trireme::cuda {

/// Saved context of a fiber, or of the scheduler, while another one runs.
struct FiberPlace {
  ucontext_t context;
  jmp_buf jump;
  bool is_begun = false;
};

namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kGuardBytes = 64;
constexpr std::byte kPattern{0xcd};

/// Suspends `from` and resumes `to`; returns when `from` is resumed. Has no local variables that a jump could
/// corrupt.
[[gnu::noinline]] void change(FiberPlace& from, FiberPlace& to) {
#if TRIREME_JUMPS
  if (_setjmp(from.jump) != 0) return;
  if (to.is_begun) _longjmp(to.jump, 1);
  to.is_begun = true;
  setcontext(&to.context);
#else
  to.is_begun = true;
  swapcontext(&from.context, &to.context);
#endif
}

}  // namespace

/// Stacks and contexts for as many threads as the largest block so far has.
struct HostBlock::Fibers {
  explicit Fibers(int threads) : count(threads), places(static_cast<size_t>(threads)) {
    scheduler.is_begun = true;
    stacks =
        mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) base::fail(base::ErrorCode::exhausted, "no memory for ", threads, " stacks");
  }
  ~Fibers() { munmap(stacks, bytes()); }
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;
  size_t bytes() const { return static_cast<size_t>(count) * kStackBytes; }

  int count;
  std::vector<FiberPlace> places;
  FiberPlace scheduler;
  void* stacks = nullptr;
};

HostBlock::HostBlock() = default;
HostBlock::~HostBlock() = default;

void HostBlock::reserve(int threads, int64_t shared_bytes) {
  const auto count = static_cast<size_t>(threads);
  if (fibers_ == nullptr || fibers_->count < threads) fibers_ = std::make_unique<Fibers>(threads);
  if (exchange_.size() < 2 * count) exchange_.resize(2 * count);
  waits_.assign(count, Wait::none);
  exchange_turn_.assign(count, 0);
  const size_t bytes = static_cast<size_t>(shared_bytes) + kGuardBytes + 16;
  memory_.assign(bytes, kPattern);
  shared_ = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory_.data()) + 15) & ~uintptr_t{15});
}

void HostBlock::run(int threads, int64_t shared_bytes, Body body, const void* what) {
  reserve(threads, shared_bytes);
  threads_ = threads;
  body_ = body;
  what_ = what;
  reverse_ = false;
  meets_ = true;
  failure_ = nullptr;
  try {
    while (turn()) {
    }
  } catch (...) {
    // Fibers that are still waiting start afresh in the next block.
    for (int t = 0; t < threads_; ++t) {
      FiberPlace& place = fibers_->places[static_cast<size_t>(t)];
      if (waits_[static_cast<size_t>(t)] != Wait::done) place.is_begun = false;
    }
    if (failure_) std::rethrow_exception(failure_);
    throw;
  }
  if (failure_) std::rethrow_exception(failure_);
  const std::byte* end = shared_ + shared_bytes;
  base::check(std::all_of(end, end + kGuardBytes, [](std::byte b) { return b == kPattern; }),
              "a block writes past its ", shared_bytes, " bytes of shared memory");
}

void HostBlock::run_apart(int threads, Body body, const void* what) {
  meets_ = false;
  for (int t = 0; t < threads; ++t) body(what, t);
}

uint64_t HostBlock::shuffle(int thread, uint64_t value, int mask) {
  const auto t = static_cast<size_t>(thread);
  // Two slots used in turn, since a lane may write its next value while others still read the last one.
  const size_t turn = exchange_turn_[t];
  exchange_turn_[t] = static_cast<uint8_t>(1 - turn);
  exchange_[2 * t + turn] = value;
  meet(thread, Wait::warp);
  const int other = thread / kWarp * kWarp + ((thread % kWarp) ^ mask);
  base::check(other < threads_, "a shuffle reads lane ", other, " of a block of ", threads_);
  return exchange_[2 * static_cast<size_t>(other) + turn];
}

void HostBlock::enter(unsigned high, unsigned low, int thread) {
  reinterpret_cast<HostBlock*>((uintptr_t{high} << 32) | uintptr_t{low})->live(thread);
}

/// The loop of a fiber: it runs the same thread of one block after another.
void HostBlock::live(int thread) {
  for (;;) {
    try {
      body_(what_, thread);
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
    waits_[static_cast<size_t>(thread)] = Wait::done;
    change(fibers_->places[static_cast<size_t>(thread)], fibers_->scheduler);
  }
}

void HostBlock::resume(int thread) {
  FiberPlace& place = fibers_->places[static_cast<size_t>(thread)];
  if (!place.is_begun) {
    getcontext(&place.context);
    place.context.uc_stack.ss_sp =
        static_cast<std::byte*>(fibers_->stacks) + static_cast<size_t>(thread) * kStackBytes;
    place.context.uc_stack.ss_size = kStackBytes;
    place.context.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&place.context, reinterpret_cast<void (*)()>(&HostBlock::enter), 3,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self & 0xffffffffu), thread);
  }
  change(fibers_->scheduler, place);
}

void HostBlock::meet(int thread, Wait wait) {
  base::check(meets_, "a kernel that says kIndependent meets other threads");
  waits_[static_cast<size_t>(thread)] = wait;
  change(fibers_->places[static_cast<size_t>(thread)], fibers_->scheduler);
}

/// Runs once every thread that does not wait; false when all are done.
bool HostBlock::turn() {
  bool ran = false, any_left = false;
  for (int i = 0; i < threads_; ++i) {
    const int t = reverse_ ? threads_ - 1 - i : i;
    const Wait wait = waits_[static_cast<size_t>(t)];
    if (wait == Wait::done) continue;
    any_left = true;
    if (wait != Wait::none) continue;
    resume(t);
    ran = true;
  }
  if (!any_left) return false;
  if (!ran) release();
  return true;
}

/// Called when every thread waits: releases those whose barrier or shuffle is complete.
void HostBlock::release() {
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

bool HostBlock::all_wait(int first, int last, Wait wait) const {
  return std::all_of(waits_.begin() + first, waits_.begin() + last, [&](Wait w) { return w == wait; });
}

void HostBlock::let_go(int first, int last) {
  std::fill(waits_.begin() + first, waits_.begin() + last, Wait::none);
}

}  // namespace trireme::cuda
