// A thread that runs the aside steps of a program one after another, in the order in which they are given.
#include "runtime/side_lane.h"

#include <utility>

namespace trireme::runtime {
namespace {

// Spins a few microseconds for work that is nearly done, then yields: with more threads than cores the other
// side needs this core.
constexpr int kSpins = 128;
constexpr int kYields = 16;

/// Returns once the counter has reached `ticket`; counters wrap around.
void wait_reached(const std::atomic<uint32_t>& counter, uint32_t ticket) {
  const auto is_reached = [&](uint32_t now) { return static_cast<int32_t>(now - ticket) >= 0; };
  for (int i = 0; i < kSpins + kYields; ++i) {
    if (is_reached(counter.load(std::memory_order_acquire))) return;
    if (i >= kSpins) std::this_thread::yield();
  }
  for (uint32_t now = counter.load(std::memory_order_acquire); !is_reached(now);
       now = counter.load(std::memory_order_acquire)) {
    counter.wait(now, std::memory_order_acquire);
  }
}

}  // namespace

SideLane::SideLane(std::function<void(uint32_t)> run) : run_(std::move(run)), thread_([this] { work(); }) {}

SideLane::~SideLane() {
  post(kStop);
  thread_.join();
}

uint32_t SideLane::post(uint32_t job) {
  const uint32_t ticket = posted_.load(std::memory_order_relaxed) + 1;
  wait_reached(done_, ticket - kRing);  // waits for a place in the ring
  jobs_[ticket % kRing].store(job, std::memory_order_relaxed);
  posted_.store(ticket, std::memory_order_release);
  posted_.notify_one();
  return ticket;
}

void SideLane::wait(uint32_t ticket) { wait_reached(done_, ticket); }

void SideLane::finish() {
  wait(posted_.load(std::memory_order_relaxed));
  if (!has_failed()) return;
  failed_.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

void SideLane::work() {
  for (uint32_t ticket = 1;; ++ticket) {
    wait_reached(posted_, ticket);
    const uint32_t job = jobs_[ticket % kRing].load(std::memory_order_relaxed);
    if (job == kStop) return;
    if (!failed_.load(std::memory_order_relaxed)) {
      try {
        run_(job);
      } catch (...) {
        failure_ = std::current_exception();
        failed_.store(true, std::memory_order_release);
      }
    }
    done_.store(ticket, std::memory_order_release);
    done_.notify_one();
  }
}

}  // namespace trireme::runtime
