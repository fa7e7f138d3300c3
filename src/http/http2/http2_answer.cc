// Bodies of HTTP/2 answers, sent without copying, and the pace at which clients read them.
#include "http/http2/http2_answer.h"

#include <utility>

#include "http/socket.h"

namespace trireme::http {
namespace {

constexpr size_t kCopiedBytes = 4096;  // parts up to this size are copied behind the header of their frame

}  // namespace

bool Http2Unsent::is_late(const PaceLimits& limits, int64_t now_ns, bool is_shut, int64_t quiet_ns) {
  if (waiting_bytes_ == 0) {
    reading_.rest();
  } else {
    reading_.look(limits, now_ns, sent_bytes_, is_shut);
  }
  if (!reading_.is_late(now_ns, quiet_ns)) return false;
  reading_.rest();
  return true;
}

void Http2Answer::put(BodyPart part) {
  const size_t bytes = part.bytes().size();
  parts_.push_back(std::move(part));
  unsent_.put(bytes);
}

void Http2Answer::finish(Http2Fields trailers) {
  trailers_ = std::move(trailers);
  is_finished_ = true;
}

void Http2Answer::send(size_t bytes, Output& out, bool copies) {
  unsent_.send(bytes);
  while (bytes > 0) {
    BodyPart& part = parts_.front();
    const std::string_view rest = part.bytes().substr(front_sent_);
    const std::string_view now = rest.substr(0, bytes);
    if (copies || now.size() <= kCopiedBytes) {
      out.text().append(now);
    } else if (now.size() == part.bytes().size()) {
      out.append(std::move(part));
    } else {
      out.append(part.share(front_sent_, now.size()));
    }
    bytes -= now.size();
    front_sent_ += now.size();
    if (now.size() == rest.size()) {
      parts_.pop_front();
      front_sent_ = 0;
    }
  }
}

size_t Http2Answer::drop() {
  const size_t bytes = unsent_.waiting_bytes();
  unsent_.drop(bytes);
  parts_.clear();
  return bytes;
}

bool Http2Answer::take_deferred() { return std::exchange(is_deferred_, false); }

}  // namespace trireme::http
