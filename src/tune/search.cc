// The search over configurations.
#include "tune/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <set>

#include "base/machine/cpu_info.h"
#include "base/threads/thread_pool.h"

namespace trireme::tune {
namespace {

/// What a process holds besides weights and arenas: code, buffers of connections, queues.
constexpr int64_t kProcessBytes = int64_t{48} << 20;
constexpr int64_t kRoughRequests = 4'000, kFineRequests = 40'000, kCurveRequests = 10'000;
constexpr size_t kFineCount = 16;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::vector<int> steps_to(int most) {
  std::vector<int> steps;
  for (int n = 1; n <= most; n = n < 4 ? n + 1 : n + n / 2 - (n / 2) % 2) steps.push_back(n);
  if (steps.back() != most) steps.push_back(most);
  return steps;
}

}  // namespace

std::vector<Layout> layouts_of(int cores, const std::vector<int64_t>& instances,
                               const std::vector<int64_t>& threads) {
  std::set<Layout> found;
  std::vector<int> steps = steps_to(cores);
  if (!threads.empty()) steps.assign(threads.begin(), threads.end());
  for (int t : steps) {
    std::vector<int> counts{1, 2, std::max(1, (cores - 1) / t), std::max(1, cores / t)};
    if (!instances.empty()) counts.assign(instances.begin(), instances.end());
    for (int i : counts) {
      const bool is_asked = !instances.empty() && !threads.empty();
      if (i * t <= cores || is_asked) found.insert({i, t});
    }
  }
  base::require(!found.empty(), "no layout of --instances and --threads fits ", cores, " cores");
  return {found.begin(), found.end()};
}

std::vector<Candidate> candidates_of(const Subject& subject, const CostPlan& plan, const CostTable& table,
                                     const std::vector<int64_t>& windows_ns, const Wish& wish) {
  std::vector<Candidate> list;
  for (size_t v = 0; v < subject.variants.size(); ++v) {
    if (!subject.variants[v].refusal.empty()) continue;
    for (Layout layout : plan.layouts) {
      const int64_t most = table.most_rows(v, layout);
      if (!subject.is_batched()) {
        list.push_back({.variant = v, .layout = layout});
        continue;
      }
      for (int64_t rows : plan.rows) {
        if (rows > most || rows < wish.rows) continue;
        for (int64_t window : windows_ns) {
          for (bool is_fine : {false, true}) {
            Candidate c{.variant = v,
                        .layout = layout,
                        .max_batch = rows,
                        .window_ns = window,
                        .row_buckets = row_buckets(rows, is_fine)};
            if (is_fine && c.row_buckets == row_buckets(rows, false)) continue;
            list.push_back(c);
            // Without a window, or when nobody can join, the rule of the window decides nothing.
            if (window == 0 || rows == wish.rows) continue;
            c.keeps_window = true;
            list.push_back(std::move(c));
          }
          if (rows == wish.rows) break;
        }
      }
    }
  }
  return list;
}

ServiceTimes Predictor::times_of(const Candidate& c, double rate) const {
  const auto most = static_cast<size_t>(std::max<int64_t>(1, c.max_batch));
  const size_t groups = subject_.groups.size(), instances = static_cast<size_t>(c.layout.instances);
  // What the front end takes from the cores that compute, once none is left for it.
  // A team waits for that one of its threads that lost its core, so what is taken from one is lost to all.
  const double free = static_cast<double>(wish_.machine_cores - c.layout.cores());
  const double taken = std::max(0.0, rate * front_.cpu_ns * 1e-9 - std::max(0.0, free));
  const double slower = (1 + taken / c.layout.instances) * slowness(c);
  auto table = std::make_shared<std::vector<double>>(groups * instances * (most + 1));
  for (size_t g = 0; g < groups; ++g) {
    for (size_t b = 0; b < instances; ++b) {
      for (size_t r = 1; r <= most; ++r) {
        (*table)[(g * instances + b) * (most + 1) + r] =
            slower *
            costs_.table.usual_ns(c.variant, c.layout, g, static_cast<int64_t>(r), static_cast<int>(b) + 1);
      }
    }
  }
  return {.usual_ns =
              [table, instances, most](size_t group, int64_t rows, int busy) {
                const size_t row = std::min(static_cast<size_t>(rows), most);
                return (*table)[(group * instances + static_cast<size_t>(busy) - 1) * (most + 1) + row];
              },
          .ratios = costs_.table.ratios(c.variant, c.layout),
          .overhead_ns = front_.overhead_ns};
}

double Predictor::saturation_of(const Candidate& c) const {
  const int64_t most = std::max<int64_t>(1, c.max_batch);
  double total = 0, ns = 0;  // of a request, mean over the traffic
  for (size_t g = 0; g < subject_.groups.size(); ++g) {
    double best = kInfinite;
    for (int64_t rows = wish_.rows; rows <= most; rows += wish_.rows) {
      const int64_t padded = sched::bucket_of(c.row_buckets, rows);
      const double cost = costs_.table.usual_ns(c.variant, c.layout, g, padded, c.layout.instances);
      best = std::min(best, cost * static_cast<double>(wish_.rows) / static_cast<double>(rows));
    }
    total += subject_.groups[g].share;
    ns += subject_.groups[g].share * best;
  }
  // Medians are what is usual; capacity is what is so on average.
  const double mean = costs_.table.mean_ratio(c.variant, c.layout);
  const double computed = c.layout.instances * 1e9 * total / (ns * mean * slowness(c));
  // Every request also takes its part of the front end, on the same cores.
  const double core_s = c.layout.cores() / computed + front_.cpu_ns * 1e-9;
  return std::min(computed, wish_.machine_cores / core_s);
}

double Predictor::slowness(const Candidate& c) const {
  const auto known = taught_.find({c.variant, c.layout});
  return known == taught_.end() ? 1 : known->second.factor;
}

// Longer batches are also larger ones, so the factor is looked for by simulating. Near saturation a short
// stall fills batches for long, which looks like slowness; and what passes between batches looks like none.
void Predictor::learn(const Candidate& c, const Observed& seen) {
  constexpr double kMost = 4;
  constexpr int kSteps = 8;  // to half a percent
  if (!(seen.service_ns > 0)) return;
  Taught& taught = taught_[{c.variant, c.layout}];
  taught.factor = 1;
  const double possible = seen.throughput > 0 ? std::max(1.0, saturation_of(c) / seen.throughput) : kMost;
  taught.least = seen.keeps_up ? std::min(taught.least, possible) : possible;
  double low = 1, high = kMost;
  for (int step = 0; step < kSteps; ++step) {
    taught.factor = std::sqrt(low * high);
    (at(c, seen.rate, seen.clients, kCurveRequests).service_ns < seen.service_ns ? low : high) =
        taught.factor;
  }
  taught.factor = std::clamp(std::sqrt(low * high), taught.least, std::max(taught.least, possible));
}

Traffic Predictor::traffic(double rate, int64_t clients, int64_t requests) const {
  Traffic t{.rate = rate,
            .clients = clients,
            .rows = wish_.rows,
            .requests = requests,
            .warm_up = std::max<int64_t>(200, requests / 20),
            .seed = wish_.seed};
  t.group_shares.clear();
  for (const Group& g : subject_.groups) t.group_shares.push_back(g.share);
  return t;
}

Simulated Predictor::at(const Candidate& c, double rate, int64_t clients, int64_t requests) const {
  const double busy_rate = clients > 0 ? saturation_of(c) : rate;
  return simulate(c.batching(), times_of(c, busy_rate), traffic(clients > 0 ? 0 : rate, clients, requests));
}

Prediction Predictor::describe(const Candidate& c, const Simulated& run, double rate) const {
  Prediction p{.candidate = c, .rate = rate, .throughput = run.throughput, .saturation = saturation_of(c)};
  p.p50_ns = static_cast<double>(run.latency.quantile(0.5));
  p.p95_ns = static_cast<double>(run.latency.quantile(0.95));
  p.p99_ns = static_cast<double>(run.latency.quantile(0.99));
  p.mean_batch = run.mean_batch;
  p.busy = run.busy;
  if (const auto at = costs_.footprints.find({c.variant, c.layout}); at != costs_.footprints.end()) {
    // The arena was asked for the largest size that was measured; it grows with the rows.
    const double share =
        static_cast<double>(std::max<int64_t>(1, c.max_batch)) /
        static_cast<double>(std::max<int64_t>(1, costs_.table.most_rows(c.variant, c.layout)));
    p.memory_bytes =
        kProcessBytes + at->second.weight_bytes +
        static_cast<int64_t>(share * static_cast<double>(at->second.arena_bytes)) * c.layout.instances;
  }
  for (const LatencyGoal& goal : wish_.goals) {
    const auto ns = static_cast<double>(run.latency.quantile(goal.quantile));
    p.excess = std::max(p.excess, ns / static_cast<double>(goal.bound_ns));
  }
  const bool fits = wish_.memory_bytes == 0 || p.memory_bytes <= wish_.memory_bytes;
  p.is_feasible = fits && run.meets(wish_.goals);
  const double share = wish_.price_per == PricePer::core ? c.layout.cores() : 1;
  p.cost_per_million =
      p.throughput > 0 ? wish_.price_per_hour * share / 3600 / p.throughput * 1e6 : kInfinite;
  return p;
}

Prediction Predictor::predict(const Candidate& c, int64_t requests, double hint) const {
  if (wish_.clients > 0) return describe(c, at(c, 0, wish_.clients, requests), 0);
  if (wish_.rate > 0) return describe(c, at(c, wish_.rate, 0, requests), wish_.rate);
  return at_best_rate(c, requests, hint);
}

Prediction Predictor::at_best_rate(const Candidate& c, int64_t requests, double hint) const {
  const double most = saturation_of(c);
  // A short run above capacity may still meet a patient goal: a fixed time must be simulated, not a count.
  const auto run_at = [&](double rate) {
    int64_t count = requests;
    for (const LatencyGoal& goal : wish_.goals) {
      const double steady = 20 * rate * static_cast<double>(goal.bound_ns) * 1e-9;
      count = std::max(count, static_cast<int64_t>(std::min(steady, 4.0 * static_cast<double>(requests))));
    }
    return simulate(c.batching(), times_of(c, rate), traffic(rate, 0, count), wish_.goals);
  };
  // Without a goal the queue still has to keep up.
  const auto holds = [&](const Simulated& run, double rate) {
    return run.meets(wish_.goals) && run.throughput >= 0.97 * rate;
  };
  double good = hint > 0 ? 0.92 * hint : most / 64, bad = most;
  Simulated best = run_at(good);
  if (hint > 0 && !holds(best, good)) {
    bad = good;
    good = most / 64;
    best = run_at(good);
  }
  if (!best.meets(wish_.goals)) return describe(c, at(c, good, 0, requests), good);
  const double precision = requests > kRoughRequests ? 1.01 : 1.04;
  while (bad / good > precision) {
    double rate = good * 4 < bad ? std::sqrt(good * bad) : (good + bad) / 2;
    if (hint > 0 && hint * 1.06 > good && hint * 1.06 < rate) rate = hint * 1.06;
    Simulated run = run_at(rate);
    if (holds(run, rate)) {
      good = rate;
      best = std::move(run);
    } else {
      bad = rate;
    }
  }
  return describe(c, best, good);
}

bool is_better(const Prediction& a, const Prediction& b, const Wish& wish) {
  if (a.is_feasible != b.is_feasible) return a.is_feasible;
  if (!a.is_feasible) return a.excess < b.excess;
  const auto worse = [](double x, double y) { return x < y * 0.999; };
  if (wish.objective == Objective::cost) {
    if (worse(a.cost_per_million, b.cost_per_million)) return true;
    if (worse(b.cost_per_million, a.cost_per_million)) return false;
  } else if (wish.rate == 0) {  // a rate that is given is what all answer
    if (worse(b.throughput, a.throughput)) return true;
    if (worse(a.throughput, b.throughput)) return false;
  }
  if (a.candidate.layout.cores() != b.candidate.layout.cores() && wish.objective == Objective::cost)
    return a.candidate.layout.cores() < b.candidate.layout.cores();
  return a.p99_ns < b.p99_ns;
}

double Predictor::promise(const Candidate& c) const {
  const double share = wish_.price_per == PricePer::core ? c.layout.cores() : 1;
  return saturation_of(c) / (wish_.objective == Objective::cost ? share : 1);
}

double Predictor::worth(const Prediction& p) const {
  const double share = wish_.price_per == PricePer::core ? p.candidate.layout.cores() : 1;
  return p.throughput / (wish_.objective == Objective::cost ? share : 1);
}

Prediction Predictor::unsimulated(const Candidate& c) const {
  Prediction p{.candidate = c, .saturation = saturation_of(c), .cost_per_million = kInfinite};
  p.excess = kInfinite;
  return p;
}

namespace {

/// The most promising first: what comes later can then be left out.
std::vector<size_t> by_promise(const Predictor& predictor, const std::vector<Candidate>& candidates) {
  std::vector<std::pair<double, size_t>> keys;
  for (size_t i = 0; i < candidates.size(); ++i) keys.emplace_back(-predictor.promise(candidates[i]), i);
  std::sort(keys.begin(), keys.end());
  std::vector<size_t> order;
  for (const auto& [key, i] : keys) order.push_back(i);
  return order;
}

/// More by twice what a bisection's end may differ by, or as much much sooner.
bool is_clearly_better(const Predictor& predictor, const Prediction& a, const Prediction& b) {
  if (a.is_feasible != b.is_feasible || !a.is_feasible) return a.is_feasible;
  const double gain = predictor.worth(a) / predictor.worth(b);
  return gain > 1.02 || (gain > 0.99 && a.p99_ns < 0.9 * b.p99_ns);
}

}  // namespace

std::vector<Prediction> search(const Predictor& predictor, const std::vector<Candidate>& candidates,
                               const Wish& wish) {
  std::vector<Prediction> list(candidates.size());
  base::ThreadPool pool(base::read_cpu_info().threads());
  const auto sort = [&] {
    std::stable_sort(list.begin(), list.end(),
                     [&](const Prediction& a, const Prediction& b) { return is_better(a, b, wish); });
  };
  const std::vector<size_t> order = by_promise(predictor, candidates);
  std::atomic<double> best{0};
  pool.run(static_cast<int64_t>(list.size()), [&](int64_t i) {
    const Candidate& c = candidates[order[static_cast<size_t>(i)]];
    Prediction& p = list[static_cast<size_t>(i)];
    // Far below the best even when saturated: not worth a simulation.
    const bool is_open = wish.rate == 0 && wish.clients == 0;
    if (is_open && predictor.promise(c) < 0.7 * best.load()) {
      p = predictor.unsimulated(c);
      return;
    }
    p = predictor.predict(c, kRoughRequests);
    const double worth = p.is_feasible ? predictor.worth(p) : 0;
    for (double now = best.load(); worth > now && !best.compare_exchange_weak(now, worth);) {
    }
  });
  sort();
  pool.run(static_cast<int64_t>(std::min(kFineCount, list.size())), [&](int64_t i) {
    Prediction& p = list[static_cast<size_t>(i)];
    p = predictor.predict(p.candidate, kFineRequests, p.rate);
    if (p.candidate.max_batch <= wish.rows) return;
    Candidate whole = p.candidate;
    whole.runs_whole = true;
    Prediction other = predictor.predict(whole, kFineRequests, p.rate);
    if (is_clearly_better(predictor, other, p)) p = std::move(other);
  });
  sort();
  return list;
}

std::vector<Prediction> shortlist(const std::vector<Prediction>& sorted, size_t count) {
  std::vector<Prediction> list;
  for (const Prediction& p : sorted) {
    if (list.size() >= count) break;
    const bool is_new = std::none_of(list.begin(), list.end(), [&](const Prediction& q) {
      return q.candidate.variant == p.candidate.variant && q.candidate.layout == p.candidate.layout &&
             q.candidate.max_batch == p.candidate.max_batch;
    });
    if (is_new) list.push_back(p);
  }
  return list;
}

std::vector<Prediction> load_curve(const Predictor& predictor, const Candidate& candidate) {
  std::vector<Prediction> curve;
  const double most = predictor.saturation_of(candidate);
  for (double share : {0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95}) {
    const double rate = share * most;
    const Simulated run = predictor.at(candidate, rate, 0, kCurveRequests);
    // A queue that grows has no latency of its own.
    if (run.refused == 0 && run.throughput >= 0.97 * rate)
      curve.push_back(predictor.describe(candidate, run, rate));
  }
  return curve;
}

std::vector<Prediction> pareto_front(const std::vector<Prediction>& list) {
  std::vector<Prediction> sorted = list;
  std::sort(sorted.begin(), sorted.end(), [](const Prediction& a, const Prediction& b) {
    return std::pair(-a.throughput, a.p99_ns) < std::pair(-b.throughput, b.p99_ns);
  });
  std::vector<Prediction> front;
  for (const Prediction& p : sorted) {
    if (p.throughput > 0 && (front.empty() || p.p99_ns < front.back().p99_ns)) front.push_back(p);
  }
  std::reverse(front.begin(), front.end());
  return front;
}

}  // namespace trireme::tune
