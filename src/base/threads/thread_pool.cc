// A fork-join team of threads: an epoch counter starts a call, each member gets a range of tasks, and waiting
// members spin first and then sleep on a futex.
#include "base/threads/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <system_error>

#include "base/machine/busy_cpus.h"
#include "base/error.h"
#include "base/threads/float_controls.h"
#include "base/threads/team_meetings.h"
#include "base/threads/team_seats.h"

namespace trireme::base {
namespace {

// Long enough to bridge the gap between two steps of a program, and short enough not to take the core from
// another process for long.
constexpr int kSpins = 4000;
constexpr int kMaxThreads = 1024;

thread_local int64_t meetings = 0;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void pin(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // Where this fails (a container's cpu mask), the result is the same, only slower.
  (void)pthread_setaffinity_np(thread, sizeof set, &set);
}

template <class Shared>
void stop_and_join(Shared& shared, std::vector<std::thread>& workers) {
  shared.stop = true;
  shared.epoch.fetch_add(1);
  shared.epoch.notify_all();
  for (std::thread& t : workers) t.join();
}

}  // namespace

// Invariant: between two calls of run_erased no worker is inside the task loop (`inside` is 0), so the caller
// may rewrite call/body/shares. A worker increments `inside` before it reads them, and then checks `open` and
// the epoch again.
struct ThreadPool::Shared {
  explicit Shared(int size)
      : shares(static_cast<size_t>(size)), places(shares.size()), seats(shares.size()) {}

  /// The range of tasks with which a member begins; `next` reaches `end` when all of them are taken.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  /// Processor of a sleeping member; `confined` is set while its affinity mask is still the narrow one of
  /// waking.
  struct alignas(64) Place {
    std::atomic<int> cpu{-1};
    std::atomic<bool> asleep{false};
    std::atomic<bool> confined{false};
  };

  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<int64_t> done{0};
  alignas(64) std::atomic<int> inside{0};
  alignas(64) std::atomic<int> sleeping{0};
  std::atomic<bool> open{false};
  std::atomic<bool> stop{false};
  Call call = nullptr;
  const void* body = nullptr;
  uint32_t controls = 0;
  int members = 0;  // number of shares in use
  std::vector<Share> shares;
  std::vector<Place> places;
  std::vector<Seat> seats;  // scratch space of the caller
  cpu_set_t usable;
  bool seats_members = false;

  /// Runs the member's own tasks first, then the remaining tasks of the other members.
  void run_shares(int member) {
    int64_t count = 0;
    for (int k = 0; k < members; ++k) {
      Share& share = shares[static_cast<size_t>(member + k < members ? member + k : member + k - members)];
      // Load before adding: the cache line of a finished share then stays shared by all its readers.
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int64_t i = share.next.fetch_add(1, std::memory_order_relaxed);
        if (i >= share.end) break;
        call(body, i);
        ++count;
      }
    }
    if (count > 0) done.fetch_add(count, std::memory_order_release);
  }

  /// A hypervisor reports an idle virtual processor as busy, so Linux wakes a thread on its waker's
  /// processor, where it waits for the end of the waker's time slice: for milliseconds, one thread of a team
  /// of two computes alone. Sleepers are therefore woken on processors of their own, and may move again once
  /// they run.
  void seat_sleepers(std::vector<std::thread>& workers) {
    seats[0] = {sched_getcpu(), false};
    for (size_t m = 1; m < places.size(); ++m)
      seats[m] = {places[m].cpu.load(std::memory_order_relaxed), places[m].asleep.load()};
    const cpu_set_t free = without_others(usable, seats);
    assign_seats(free, seats);
    for (size_t m = 1; m < places.size(); ++m) {
      if (!seats[m].asleep) continue;
      const cpu_set_t set = waking_cpus(free, seats, m);
      places[m].confined.store(true);
      (void)pthread_setaffinity_np(workers[m - 1].native_handle(), sizeof set, &set);
    }
  }

  /// Sleeps until the epoch changes. Meanwhile the member does not count as computing on any processor.
  void sleep(uint32_t seen, int member, BusyCpu& busy) {
    Place& place = places[static_cast<size_t>(member)];
    place.cpu.store(sched_getcpu(), std::memory_order_relaxed);
    busy = BusyCpu();
    place.asleep.store(true);
    sleeping.fetch_add(1);
    epoch.wait(seen);
    sleeping.fetch_sub(1);
    busy = BusyCpu::here();
    place.cpu.store(busy.cpu(), std::memory_order_relaxed);
    place.asleep.store(false);
  }

  void take(uint32_t started, int member) {
    inside.fetch_add(1);
    // `open` is cleared before the caller leaves run_erased, so a late worker never reads a destroyed body.
    if (open.load() && epoch.load() == started && member < members) {
      set_float_controls(controls);
      run_shares(member);
    }
    inside.fetch_sub(1);
  }
};

ThreadPool::ThreadPool(int threads, std::span<const int> cpus)
    : size_(std::max(1, threads)), shared_(std::make_unique<Shared>(size_)) {
  require(size_ <= kMaxThreads, "a team has at most ", kMaxThreads, " threads, asked for ", size_);
  for (int cpu : cpus) require(cpu >= 0 && cpu < CPU_SETSIZE, "no processor ", cpu);
  CPU_ZERO(&shared_->usable);
  shared_->seats_members = cpus.empty() && size_ > 1 &&
                           sched_getaffinity(0, sizeof shared_->usable, &shared_->usable) == 0 &&
                           CPU_COUNT(&shared_->usable) > 1;
  try {
    for (int member = 1; member < size_; ++member) {
      workers_.emplace_back([this, member] { work(member); });
      if (!cpus.empty())
        pin(workers_.back().native_handle(), cpus[static_cast<size_t>(member) % cpus.size()]);
    }
  } catch (const std::system_error&) {  // the process may start no more threads
    stop_and_join(*shared_, workers_);
    fail(ErrorCode::exhausted, "the system gave ", workers_.size(), " of ", size_ - 1, " threads");
  }
  if (!cpus.empty()) pin(pthread_self(), cpus[0]);
}

ThreadPool::~ThreadPool() { stop_and_join(*shared_, workers_); }

void ThreadPool::work(int member) {
  Shared& s = *shared_;
  uint32_t seen = 0;
  BusyCpu busy = BusyCpu::here();
  while (true) {
    uint32_t now = s.epoch.load(std::memory_order_acquire);
    for (int spin = 0; now == seen && spin < kSpins; ++spin) {
      pause_cpu();
      now = s.epoch.load(std::memory_order_acquire);
    }
    if (now == seen) {
      s.sleep(seen, member, busy);
      continue;
    }
    std::atomic<bool>& confined = s.places[static_cast<size_t>(member)].confined;
    if (confined.load(std::memory_order_relaxed) && confined.exchange(false))
      (void)sched_setaffinity(0, sizeof s.usable, &s.usable);
    seen = now;
    if (s.stop) return;
    s.take(now, member);
  }
}

void ThreadPool::run_erased(int64_t tasks, Call call, const void* body) {
  Shared& s = *shared_;
  ++meetings;
  while (s.inside.load(std::memory_order_acquire) != 0) pause_cpu();
  s.call = call;
  s.body = body;
  s.controls = float_controls();
  s.members = static_cast<int>(std::min<int64_t>(size_, tasks));
  for (int m = 0; m < s.members; ++m) {
    Shared::Share& share = s.shares[static_cast<size_t>(m)];
    share.next.store(tasks * m / s.members, std::memory_order_relaxed);
    share.end = tasks * (m + 1) / s.members;
  }
  s.done.store(0, std::memory_order_relaxed);
  if (s.seats_members && s.sleeping.load() > 0) s.seat_sleepers(workers_);
  s.open.store(true);
  s.epoch.fetch_add(1);
  if (s.sleeping.load() > 0) s.epoch.notify_all();
  s.run_shares(0);
  while (s.done.load(std::memory_order_acquire) != tasks) pause_cpu();
  s.open.store(false);
}

int64_t team_meetings() { return meetings; }

}  // namespace trireme::base
