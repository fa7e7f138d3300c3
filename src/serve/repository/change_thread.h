// Changes of a repository: one at a time, in the order in which they were asked for, on a thread of their
// own.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "base/threads/bounded_queue.h"
#include "base/report/env.h"

namespace trireme::serve {

class ChangeThread {
 public:
  using Change = std::function<void()>;
  /// Called after each change, and at the time that it gave last: what there is to look for besides. Gives
  /// the time of the next look, INT64_MAX for none but after changes.
  using Look = std::function<int64_t()>;

  explicit ChangeThread(const base::Env& env) : env_(env) {}
  ~ChangeThread() { stop(); }
  ChangeThread(const ChangeThread&) = delete;
  ChangeThread& operator=(const ChangeThread&) = delete;

  /// Changes wait until this. What a change or a look throws is logged.
  void start(Look look);
  /// Throws unavailable where too many wait, or after stop().
  void submit(Change change);
  /// What waits is still called, and can see that it is over.
  bool is_stopping() const { return stopping_; }
  /// Ends the thread after what waits. Idempotent.
  void stop();

 private:
  void run(const Look& look);

  const base::Env env_;
  base::BoundedQueue<Change> changes_{64};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace trireme::serve
