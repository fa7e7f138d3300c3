// The stages of a worker as a trace that Perfetto opens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::batch {

/// Spans of time by lane. Bounded: later ones than kMostSpans are counted, not kept. Any thread, one at a
/// time.
class StageTrace {
 public:
  static constexpr size_t kMostSpans = 200'000;

  /// `is_on` false: nothing is kept.
  explicit StageTrace(bool is_on) : is_on_(is_on) {}
  /// `lane`, `name`: literals.
  void add(const char* lane, const char* name, int64_t chunk, int64_t begin_ns, int64_t end_ns);
  /// The JSON of the trace-event format.
  std::string json() const;

 private:
  struct Span {
    const char* lane;
    const char* name;
    int64_t chunk, begin_ns, end_ns;
  };
  bool is_on_;
  std::vector<Span> spans_;
  int64_t left_out_ = 0;
};

}  // namespace trireme::batch
