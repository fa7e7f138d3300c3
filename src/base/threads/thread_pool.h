// A fork-join team of threads owned by one session: the caller works too, workers spin briefly and then
// sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace trireme::base {

/// Runs parallel loops on a fixed team. One caller at a time (the session's owner thread); no allocation per
/// call.
class ThreadPool {
 public:
  /// Starts `threads - 1` workers (the caller is the last member). `cpus` pins member i to cpus[i]; empty =
  /// no pinning.
  explicit ThreadPool(int threads, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  /// Calls body(task) once for each task in [0, tasks), tasks handed out dynamically; returns when all are
  /// done. Which thread runs a task is not fixed, so results must not depend on it: all threads compute with
  /// the caller's float controls. `body` must not throw.
  template <class Body>
  void run(int64_t tasks, const Body& body) {
    if (tasks <= 0) return;
    if (size_ == 1 || tasks == 1) {
      for (int64_t i = 0; i < tasks; ++i) body(i);
      return;
    }
    run_erased(
        tasks, [](const void* b, int64_t i) { (*static_cast<const Body*>(b))(i); }, &body);
  }

  /// Calls body(begin, end) over [0, count) in pieces of at least `grain`; the pieces depend only on count
  /// and grain, never on the number of threads.
  template <class Body>
  void for_range(int64_t count, int64_t grain, const Body& body) {
    if (count <= 0) return;
    if (size_ == 1 || count <= grain) {
      body(int64_t{0}, count);
      return;
    }
    // At most 64 pieces: enough for balance on any team we run, few enough that handing them out costs
    // nothing.
    const int64_t pieces_wanted = (count + grain - 1) / grain;
    const int64_t pieces = pieces_wanted < 64 ? pieces_wanted : 64;
    run(pieces, [&](int64_t i) { body(count * i / pieces, count * (i + 1) / pieces); });
  }

 private:
  using Call = void (*)(const void* body, int64_t task);
  void run_erased(int64_t tasks, Call call, const void* body);
  void work(int member);

  int size_;
  std::vector<std::thread> workers_;
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace trireme::base
