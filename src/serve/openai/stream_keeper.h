// Comments in event streams that are silent for long, so that nobody between server and client gives them up.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "http/reply.h"
#include "serve/access/quota.h"

namespace trireme::serve {

/// The time that KeptStream::keep_alive() is told.
inline int64_t now_ns() { return base::SystemClock().now_ns(); }

/// An event stream that may wait long for its first or next event.
class KeptStream {
 public:
  virtual ~KeptStream() = default;
  /// Sends a comment where nothing was sent for `interval_ns`, having begun the stream. Any thread. False:
  /// the stream is over.
  virtual bool keep_alive(int64_t now_ns, int64_t interval_ns) = 0;
};

/// One thread that looks after all streams of a server.
class StreamKeeper {
 public:
  /// `interval_ns` 0: nothing is kept alive, and there is no thread.
  explicit StreamKeeper(int64_t interval_ns);
  ~StreamKeeper();
  StreamKeeper(const StreamKeeper&) = delete;
  StreamKeeper& operator=(const StreamKeeper&) = delete;

  /// Looks after the stream until it is over or gone.
  void keep(std::weak_ptr<KeptStream> stream);

 private:
  void run();

  const int64_t interval_ns_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<std::weak_ptr<KeptStream>> streams_;
  bool is_over_ = false;
  std::thread thread_;
};

/// The comment, which clients pass over.
inline constexpr const char* kKeepAlive = ": keep-alive\n\n";

/// The head of an event stream. `id`: of the request; `more`: further headers.
http::Response event_stream_head(const std::string& id, const ReplyHeaders& more = {});

}  // namespace trireme::serve
