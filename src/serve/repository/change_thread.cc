// Carries out changes of a repository, one at a time.
#include "serve/repository/change_thread.h"

#include <utility>

#include "base/error.h"

namespace trireme::serve {

void ChangeThread::start(Look look) {
  thread_ = std::thread([this, look = std::move(look)] { run(look); });
}

void ChangeThread::submit(Change change) {
  if (changes_.try_push(std::move(change)) != base::PushResult::ok) {
    base::fail(base::ErrorCode::unavailable, "too many loads and unloads wait already, or the server stops");
  }
}

void ChangeThread::stop() {
  stopping_ = true;
  changes_.close();
  if (thread_.joinable()) thread_.join();
}

void ChangeThread::run(const Look& look) {
  int64_t until_ns = look();
  while (true) {
    const auto change = until_ns < INT64_MAX ? changes_.pop_until(until_ns) : changes_.pop();
    try {
      if (change) (*change)();
    } catch (const std::exception& e) {  // no memory for its answer
      env_.log.error("serve", "change_failed", {{"reason", e.what()}});
    }
    if (!change && changes_.closed()) return;
    until_ns = look();
  }
}

}  // namespace trireme::serve
