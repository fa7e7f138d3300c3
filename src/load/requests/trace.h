// Arrival traces: reading them, and replaying them on time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "load/pacer.h"

namespace trireme::load {

/// One recorded request.
struct Arrival {
  int64_t at_ns = 0;                 // after the first one
  int64_t length = 0;                // input length, 0 = not recorded
  std::string model = {};            // empty = not recorded
  int64_t answer_length = 0;         // of a language model's answer, 0 = not recorded
  std::vector<int64_t> blocks = {};  // names of the input's first blocks of 512 tokens, equal ones have equal
                                     // tokens and follow equal blocks
};

/// Reads a trace, ascending in time:
///  - CSV with a head line: TIMESTAMP or timestamp ("2023-11-16 18:17:03.9799600" or seconds), and where
///    recorded ContextTokens or length, GeneratedTokens, and model (Azure's traces are of this form);
///  - JSON lines {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...], "model": "m"}
///    (Mooncake's);
///  - one gap in microseconds a line (perf_analyzer's interval file): the first request comes after the
///  first.
/// Throws invalid_argument with the number of the line that does not fit.
std::vector<Arrival> parse_trace(std::string_view text);

/// Sends the k-th arrival's request at its time divided by `speed`, whatever the server does.
class TracePacer : public Pacer {
 public:
  /// `requests[k]`: the prepared message of the k-th arrival.
  TracePacer(const std::vector<Arrival>& arrivals, std::vector<size_t> requests, double speed);

  int64_t next_ns() const override;
  Send take(int64_t now_ns) override;
  void answered(int64_t query, int64_t now_ns, bool success) override;
  bool done() const override { return next_ >= times_ns_.size(); }
  int64_t duration_ns() const { return times_ns_.empty() ? 0 : times_ns_.back(); }

 private:
  std::vector<int64_t> times_ns_;
  std::vector<size_t> requests_;
  size_t next_ = 0;
};

}  // namespace trireme::load
