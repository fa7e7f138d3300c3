// What streams of the stand-in hold back, and who runs it when.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "backend/cuda/device/emulated_memory.h"
#include "backend/cuda/device/emulated_stream.h"

namespace trireme::cuda {

/// How far an event has come. `count` and `on` belong to the thread that launches.
struct EmulatedPoint {
  std::atomic<uint64_t> passed{0};  ///< how often its place was reached
  std::atomic<int64_t> ns{0};       ///< the host's clock when it last was
  uint64_t count = 0;               ///< how often it was set
  std::weak_ptr<EmulatedQueue> on;  ///< where it was set last
  std::weak_ptr<EmulatedCapture> capture;

  void pass(uint64_t number);
  bool has_passed(uint64_t number) const { return passed.load(std::memory_order_acquire) >= number; }
  void await(uint64_t number) const;
};

/// One launch, one place of an event, or one wait for it.
struct EmulatedItem {
  enum class Kind : uint8_t { work, mark, wait };
  Kind kind = Kind::work;
  EmulatedWork own = {};               ///< empty: `work` is of a recording
  const EmulatedWork* work = nullptr;  ///< where `own` is empty
  std::shared_ptr<EmulatedPoint> point = nullptr;
  uint64_t count = 0;
};

/// Launches of several streams as they were recorded. Streams outlive what they took part in.
struct EmulatedCapture {
  struct Entry {
    EmulatedStream* on;
    EmulatedItem item;
  };
  EmulatedStream* origin = nullptr;
  std::vector<EmulatedStream*> joined;
  std::vector<Entry> entries;

  /// Throws internal if work of a joined stream is not waited for by the stream that began.
  void require_joined() const;
};

/// First in, first out; filled by one thread.
class EmulatedQueue {
 public:
  EmulatedQueue(std::shared_ptr<EmulatedMemory> memory, base::ThreadPool& pool, bool has_thread);
  ~EmulatedQueue();
  EmulatedQueue(const EmulatedQueue&) = delete;
  EmulatedQueue& operator=(const EmulatedQueue&) = delete;

  void push(EmulatedItem item);
  bool is_done() const { return done_.load(std::memory_order_acquire) == posted_.load(); }
  /// Runs the first item. False if there is none, another thread is at it, or it waits for an event.
  bool run_first();
  /// The event that the first item waits for; null if it may run.
  std::shared_ptr<EmulatedPoint> awaited() const;
  /// Of a queue with a thread: returns when it is done.
  void await() const;
  /// Throws what failed since the last call.
  void throw_failure();
  bool has_thread() const { return thread_.joinable(); }
  bool is_of_this_thread() const { return owner_.load() == std::this_thread::get_id(); }
  HostGrid& grid() { return grid_; }

 private:
  struct State {
    std::deque<EmulatedItem> items;
    std::exception_ptr failure;
  };
  void run(const EmulatedItem& item);
  void work();

  std::shared_ptr<EmulatedMemory> memory_;
  HostGrid grid_;
  base::Guarded<State> state_;
  std::atomic<uint64_t> posted_{0}, done_{0};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::atomic<std::thread::id> owner_{};
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

class EmulatedSchedule {
 public:
  explicit EmulatedSchedule(EmulatedPlan plan) : plan_(plan) {}
  bool is_direct() const { return plan_.order == EmulatedOrder::direct; }
  void add(const std::shared_ptr<EmulatedQueue>& queue);
  /// Runs what has to run before `queue` is empty, and more as the order says.
  void finish(EmulatedQueue& queue);

 private:
  std::vector<std::shared_ptr<EmulatedQueue>> others_of(const EmulatedQueue& queue);
  bool run_some(EmulatedQueue& queue);
  bool run_needed(EmulatedQueue& queue);

  EmulatedPlan plan_;
  std::atomic<uint64_t> draws_{0};
  base::Guarded<std::vector<std::weak_ptr<EmulatedQueue>>> queues_;
};

}  // namespace trireme::cuda
