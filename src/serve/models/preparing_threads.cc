// A queue of tasks and the threads that run them.
#include "serve/models/preparing_threads.h"

#include "base/error.h"

namespace trireme::serve {

PreparingThreads::PreparingThreads(int threads, size_t capacity) : tasks_(capacity) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      while (auto task = tasks_.pop()) {
        (*task)();
        *task = nullptr;  // destroyed before the task counts as finished
        if (waiting_.fetch_sub(1) == 1) waiting_.notify_all();
      }
    });
  }
}

PreparingThreads::~PreparingThreads() { stop(); }

void PreparingThreads::submit(std::function<void()> task) {
  waiting_.fetch_add(1);
  const base::PushResult pushed = tasks_.try_push(std::move(task));
  if (pushed == base::PushResult::ok) return;
  if (waiting_.fetch_sub(1) == 1) waiting_.notify_all();
  if (pushed == base::PushResult::closed)
    base::fail(base::ErrorCode::unavailable, "the model is shutting down");
  base::fail(base::ErrorCode::exhausted, "too many requests wait to be decoded");
}

void PreparingThreads::drain() const {
  for (size_t left = waiting_.load(); left > 0; left = waiting_.load()) waiting_.wait(left);
}

void PreparingThreads::stop() {
  tasks_.close();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

}  // namespace trireme::serve
