// The search: what every configuration would do, by simulation; which are worth measuring.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tune/batch_costs.h"

namespace trireme::tune {

/// What is wanted.
struct Wish {
  std::vector<LatencyGoal> goals;
  Objective objective = Objective::throughput;
  double price_per_hour = 1;
  PricePer price_per = PricePer::core;
  int machine_cores = 1;
  int64_t memory_bytes = 0;  ///< 0: no limit
  double rate = 0;           ///< fixed; 0: the highest that meets the goals
  int64_t clients = 0;       ///< instead: closed loop
  int64_t rows = 1;          ///< of a request
  uint64_t seed = 1;
};

/// What the server adds to the batches themselves, measured once.
struct FrontEnd {
  double overhead_ns = 0;  ///< of a request's latency
  double cpu_ns = 0;       ///< of processor time a request, generator included
};

/// What a simulation says of a candidate at its best rate (or the wanted one).
struct Prediction {
  Candidate candidate;
  bool is_feasible = false;  ///< meets goals and memory
  double rate = 0;           ///< open loop: at which it was simulated
  double throughput = 0;     ///< answers a second
  double saturation = 0;     ///< full batches one after another: no rate can be higher
  double p50_ns = 0, p95_ns = 0, p99_ns = 0;
  double mean_batch = 0, busy = 0;
  int64_t memory_bytes = 0;
  double cost_per_million = 0;  ///< requests; infinite where nothing is answered in time
  double excess =
      0;  ///< of an infeasible one: largest latency over its bound, at a low rate or the wanted one
};

/// Every configuration of the layouts and sizes that were measured.
std::vector<Candidate> candidates_of(const Subject& subject, const CostPlan& plan, const CostTable& table,
                                     const std::vector<int64_t>& windows_ns, const Wish& wish);

/// Layouts of a machine: threads in steps, one, two, or as many instances as fit; also with a core left free.
std::vector<Layout> layouts_of(int cores, const std::vector<int64_t>& instances,
                               const std::vector<int64_t>& threads);

/// What a server under a load told.
struct Observed {
  double rate = 0;        ///< offered; 0: closed loop
  int64_t clients = 0;    ///< closed loop
  double service_ns = 0;  ///< mean over requests of the time of their batch; 0: unknown
  double throughput = 0;  ///< answers a second
  bool keeps_up = true;   ///< else no more can be answered
};

class Predictor {
 public:
  Predictor(const Subject& subject, const Costs& costs, const Wish& wish, const FrontEnd& front)
      : subject_(subject), costs_(costs), wish_(wish), front_(front) {}

  /// The best rate that meets the goals (by bisection, `requests` a simulation), or what the wanted rate or
  /// clients give. `hint`: about where the best rate is; 0: anywhere.
  Prediction predict(const Candidate& candidate, int64_t requests, double hint = 0) const;
  /// The simulation at a given rate (or, with `clients`, in a closed loop).
  Simulated at(const Candidate& candidate, double rate, int64_t clients, int64_t requests) const;
  Prediction describe(const Candidate& candidate, const Simulated& run, double rate) const;
  /// Requests a second with full batches one after another, and no core idle.
  double saturation_of(const Candidate& candidate) const;
  /// What the objective counts, of a saturated candidate and of a prediction: requests a second, or those of
  /// the money of a second.
  double promise(const Candidate& candidate) const;
  double worth(const Prediction& prediction) const;
  /// Of a candidate that cannot be the best: infeasible, with its saturation only.
  Prediction unsimulated(const Candidate& candidate) const;
  /// Learns from a server under a load how much longer batches of this variant and layout take there than in
  /// the measurement of costs: beside a front end, a generator and all that the machine does. The factor is
  /// the one with which the simulation of that load gives the same time of a batch; not so large that the
  /// answers a second that there were could not have been, and at least so large as what a load that was too
  /// much says. It holds for all later predictions.
  void learn(const Candidate& candidate, const Observed& seen);
  /// That factor; 1: nothing was learnt.
  double slowness(const Candidate& candidate) const;

 private:
  ServiceTimes times_of(const Candidate& candidate, double rate) const;
  Traffic traffic(double rate, int64_t clients, int64_t requests) const;
  Prediction at_best_rate(const Candidate& candidate, int64_t requests, double hint) const;

  const Subject& subject_;
  const Costs& costs_;
  const Wish& wish_;
  const FrontEnd front_;
  struct Taught {
    double factor = 1, least = 1;
  };
  std::map<std::pair<size_t, Layout>, Taught> taught_;
};

/// Whether `a` is to be preferred; feasible ones first, then the objective, then fewer cores and a lower p99.
bool is_better(const Prediction& a, const Prediction& b, const Wish& wish);

/// All candidates predicted, best first: all of them roughly, then the best again with more requests.
std::vector<Prediction> search(const Predictor& predictor, const std::vector<Candidate>& candidates,
                               const Wish& wish);

/// The first `count` of a sorted list that differ in more than window and buckets.
std::vector<Prediction> shortlist(const std::vector<Prediction>& sorted, size_t count);

/// What a candidate would do from a light load to nearly its saturation.
std::vector<Prediction> load_curve(const Predictor& predictor, const Candidate& candidate);

/// Those that no other beats in both throughput and p99, by throughput.
std::vector<Prediction> pareto_front(const std::vector<Prediction>& list);

}  // namespace trireme::tune
