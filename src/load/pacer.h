// What decides when the generator sends: pure logic, told of time and answers, so that tests need no server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace trireme::load {

/// One request to send.
struct Send {
  int64_t scheduled_ns = 0;  // its latency counts from here
  size_t request = 0;        // which of the prepared messages
  int64_t query = 0;         // what answered() gets back
};

/// All times are ns after the start of the run. Used from one thread.
class Pacer {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  virtual ~Pacer() = default;
  /// When the next request is due; kNever while an answer must come first and when all were sent.
  virtual int64_t next_ns() const = 0;
  /// The request that next_ns() announced; call it when that time has come.
  virtual Send take(int64_t now_ns) = 0;
  /// A request of this query has its answer, or has failed.
  virtual void answered(int64_t query, int64_t now_ns, bool success) = 0;
  /// Nothing more will be sent.
  virtual bool done() const = 0;
};

}  // namespace trireme::load
