// MLPerf LoadGen's four scenarios: when queries are issued, and when a run counts.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "load/early_stopping.h"
#include "load/pacer.h"

namespace trireme::load {

enum class Scenario { none, single_stream, multi_stream, server, offline };

/// LoadGen's settings and their defaults. A sample is one request; 0 = the scenario's own value.
struct ScenarioSettings {
  Scenario scenario = Scenario::single_stream;
  int64_t min_duration_ns = 10 * base::kNsPerSecond;
  int64_t min_queries = 0;        // 100; offline: samples, 24,576
  int64_t max_queries = 0;        // no limit
  double percentile = 0;          // single stream 0.90, the others 0.99
  int64_t samples_per_query = 8;  // multi stream
  double target_qps = 1;          // server: rate; offline: expected rate, sets the number of samples
  int64_t bound_ns = 100 * base::kNsPerMs;        // server: the percentile must not exceed it
  size_t sample_count = 1;                        // the loaded set
  uint64_t sample_seed = 2747215439041700203ULL;  // the rules' seeds
  uint64_t schedule_seed = 16159082839903944936ULL;

  double percentile_or_default() const;
  int64_t min_queries_or_default() const;
};

/// What the run is worth.
struct ScenarioResult {
  ScenarioSettings settings;
  int64_t queries = 0;  // offline: samples
  int64_t samples = 0;
  int64_t failed = 0;              // queries with a failed sample; they count as infinitely late
  int64_t issued_duration_ns = 0;  // server: the last scheduled time; else the last answer
  int64_t last_answer_ns = 0;
  double metric = 0;                 // ns for the streams, samples a second for server and offline
  int64_t percentile_ns = 0;         // sorted latencies at floor(n p)
  std::vector<int64_t> sorted_ns;    // query latencies, ascending; kNever = failed
  EarlyStopping early;               // streams
  int64_t over_bound = 0;            // server: t
  int64_t needed_for_over = 0;       // server: h(t) + t
  std::vector<std::string> invalid;  // why the run does not count; empty = valid

  /// Latency at floor(n q); kNever if there is none.
  int64_t latency_at(double q) const;
};

/// Issues the queries of one run. Indices and gaps are those of LoadGen 6.0 for the same seeds and standard
/// library: mt19937 with shuffle, uniform_int_distribution and exponential_distribution.
class ScenarioPacer : public Pacer {
 public:
  explicit ScenarioPacer(const ScenarioSettings& settings);

  int64_t next_ns() const override;
  Send take(int64_t now_ns) override;
  void answered(int64_t query, int64_t now_ns, bool success) override;
  bool done() const override;

  /// Call it after the last answer.
  ScenarioResult result() const;

 private:
  struct Query {
    int64_t scheduled_ns = 0;
    int64_t ended_ns = 0;
    int64_t open = 0;  // samples without an answer
    bool failed = false;
  };
  void skip_shuffles();
  bool stream() const;
  bool enough(int64_t at_ns) const;
  void begin_query(int64_t scheduled_ns);

  ScenarioSettings settings_;
  std::mt19937 sample_rng_, schedule_rng_;
  std::vector<Query> queries_;
  int64_t query_size_ = 1;     // samples
  int64_t issued_ = 0;         // samples handed out of the newest query
  size_t first_sample_ = 0;    // multi stream: of the newest query
  int64_t next_query_ns_ = 0;  // kNever: not before an answer
  int64_t failed_ = 0;
  bool done_ = false;
};

const char* to_string(Scenario scenario);

}  // namespace trireme::load
