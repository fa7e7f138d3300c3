// Threads that prepare requests where that takes long, so that threads which read sockets do not.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "base/threads/bounded_queue.h"

namespace trireme::serve {

/// Tasks run in the order they came, several at a time if there are several threads. A task must not throw.
class PreparingThreads {
 public:
  /// At most `capacity` tasks wait.
  PreparingThreads(int threads, size_t capacity);
  /// As stop().
  ~PreparingThreads();
  PreparingThreads(const PreparingThreads&) = delete;
  PreparingThreads& operator=(const PreparingThreads&) = delete;

  /// Throws exhausted if too many wait, unavailable after stop().
  void submit(std::function<void()> task);
  /// Tasks that have not ended.
  size_t waiting() const { return waiting_.load(); }
  /// Waits until no task is waiting or running.
  void drain() const;
  /// Runs what waits, refuses what comes, ends the threads. Idempotent; not from a task.
  void stop();

 private:
  base::BoundedQueue<std::function<void()>> tasks_;
  std::atomic<size_t> waiting_{0};
  std::vector<std::thread> threads_;
};

}  // namespace trireme::serve
