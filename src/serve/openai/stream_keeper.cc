// Sends comments in event streams that are silent for long.
#include "serve/openai/stream_keeper.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"

namespace trireme::serve {

StreamKeeper::StreamKeeper(int64_t interval_ns) : interval_ns_(interval_ns) {
  if (interval_ns_ > 0) thread_ = std::thread([this] { run(); });
}

StreamKeeper::~StreamKeeper() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StreamKeeper::keep(std::weak_ptr<KeptStream> stream) {
  if (interval_ns_ == 0) return;
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::move(stream));
  if (streams_.size() == 1) changed_.notify_all();
}

/// Checks all streams four times per interval, so a comment is late by at most a quarter of it. Streams write
/// outside the lock, so that a new stream never waits for that.
void StreamKeeper::run() {
  const base::SystemClock clock;
  const auto pause = std::chrono::nanoseconds(std::max<int64_t>(interval_ns_ / 4, base::kNsPerMs));
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    if (streams_.empty()) {
      changed_.wait(lock, [this] { return is_over_ || !streams_.empty(); });
      continue;
    }
    if (changed_.wait_for(lock, pause, [this] { return is_over_; })) return;
    std::vector<std::weak_ptr<KeptStream>> looked;
    looked.swap(streams_);
    lock.unlock();
    const int64_t now_ns = clock.now_ns();
    std::erase_if(looked, [&](const std::weak_ptr<KeptStream>& one) {
      const std::shared_ptr<KeptStream> stream = one.lock();
      return stream == nullptr || !stream->keep_alive(now_ns, interval_ns_);
    });
    lock.lock();
    streams_.insert(streams_.end(), looked.begin(), looked.end());
  }
}

http::Response event_stream_head(const std::string& id, const ReplyHeaders& more) {
  http::Response response;
  response.headers.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
  response.headers.emplace_back("Cache-Control", "no-cache");
  response.headers.emplace_back("X-Accel-Buffering", "no");
  response.headers.emplace_back("X-Request-Id", id);
  response.headers.insert(response.headers.end(), more.begin(), more.end());
  return response;
}

}  // namespace trireme::serve
