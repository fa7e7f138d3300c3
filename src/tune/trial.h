// Measurements of candidates on a real server under a real load.
#pragma once

#include <memory>
#include <string>

#include "tune/child_server.h"
#include "tune/search.h"

namespace trireme::tune {

/// One load on one candidate, until it was stable.
struct Measurement {
  double rate = 0;      ///< offered; 0: closed loop
  int64_t clients = 0;  ///< closed loop
  double throughput = 0;
  double p50_ns = 0, p95_ns = 0, p99_ns = 0, mean_ns = 0;
  double error_share = 0;
  int64_t windows = 0;
  bool is_stable = false;
  bool keeps_up = true;  ///< answered as fast as asked: else a queue grows that a longer run would show
  int64_t peak_bytes = 0;
  double service_ns = 0;  ///< time of the batch that a request was in, by the server's statistics; 0: unknown
  double cpu_ns = 0;      ///< processor time a request, of server and generator together

  bool meets(const std::vector<LatencyGoal>& goals) const;
  base::Json to_json() const;
  static Measurement from_json(const base::Json& json);
};

/// A measurement with what the simulation said of the very same load, before it was made.
struct Compared {
  Measurement measured;
  Prediction predicted;
};

/// All about one candidate of the short list.
struct Trial {
  Prediction predicted;        ///< as the search had it
  std::vector<Compared> runs;  ///< in the order they were made
  std::string failure;         ///< why it could not be measured; empty: it was
  int best = -1;               ///< of `runs`: the highest load that met the goals; -1: none did
};

class TrialBench {
 public:
  TrialBench(const Subject& subject, const TuneOptions& options, Journal& journal, const Progress& progress)
      : subject_(subject), options_(options), journal_(journal), progress_(progress) {}

  /// What the server adds to a batch: one client against one instance of one thread.
  FrontEnd front_end(const Candidate& candidate, const CostTable& costs);
  /// Measures the candidate: at the wanted rate or clients, else looks for the highest rate that meets the
  /// goals, beginning at the predicted one. The predictor learns from every load.
  Trial run(const Prediction& prediction, Predictor& predictor, const Wish& wish);

 private:
  Measurement measure(const Candidate& candidate, double rate, int64_t clients);
  void add(Trial& trial, Predictor& predictor, double rate, int64_t clients);
  void find_rate(Trial& trial, Predictor& predictor, const Wish& wish);
  void start(const Candidate& candidate);

  const Subject& subject_;
  const TuneOptions& options_;
  Journal& journal_;
  const Progress& progress_;
  std::unique_ptr<ChildServer> server_;  ///< of `served_`
  std::string served_;
};

}  // namespace trireme::tune
