// The reply of one KServe call: one thread at a time answers, while others ask whether its client has left.
#pragma once

#include <mutex>
#include <string>
#include <utility>

#include "http/reply.h"

namespace trireme::serve {

/// Either send(), or open(), any number of write() and finish(): by one thread at a time. is_gone() may be
/// called by any thread meanwhile.
class KserveReply {
 public:
  explicit KserveReply(http::Reply reply) : reply_(std::move(reply)) {}
  KserveReply(const KserveReply&) = delete;
  KserveReply& operator=(const KserveReply&) = delete;

  void send(http::Response response) {
    end();
    reply_.send(std::move(response));
  }
  void open(http::Response head) {
    const std::lock_guard lock(mutex_);
    stream_ = reply_.stream(std::move(head));
    is_open_ = true;
  }
  bool is_open() const { return is_open_; }
  void write(std::string piece) { stream_.write(std::move(piece)); }
  void finish() {
    end();
    stream_.finish();
  }

  /// The client has left, or has got its whole answer.
  bool is_gone() const {
    const std::lock_guard lock(mutex_);
    return is_over_ || (is_open_ ? stream_.client_gone() : reply_.client_gone());
  }

 private:
  /// Nobody looks at the reply from now on: its last call may let go of the request.
  void end() {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }

  mutable std::mutex mutex_;
  http::Reply reply_;
  http::Stream stream_;
  bool is_open_ = false, is_over_ = false;  // changed with the lock held, by the thread that answers
};

}  // namespace trireme::serve
