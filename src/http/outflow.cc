// Writes a connection's bytes, and measures the pace at which the client reads them.
#include "http/outflow.h"

namespace trireme::http {

bool Outflow::flush(Socket& socket, const PaceLimits& pace, int64_t now_ns) {
  if (!is_open_ || empty()) return true;
  const size_t before = bytes();
  const Output::Flush result = queue_.flush(socket);
  if (result == Output::Flush::broken) return false;
  if (result == Output::Flush::blocked) is_open_ = false;
  written_bytes_ += before - bytes();
  empty() ? reading_.rest() : reading_.look(pace, now_ns, written_bytes_);
  return true;
}

}  // namespace trireme::http
