// Measurements of candidates on a real server.
#include "tune/trial.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "base/machine/cpu_info.h"
#include "base/files/file.h"
#include "load/requests/payload.h"
#include "load/requests/server_times.h"
#include "load/run/sweep.h"
#include "tune/model_directory.h"

namespace trireme::tune {
namespace {

int64_t own_cpu_ns() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& t) { return t.tv_sec * base::kNsPerSecond + t.tv_usec * base::kNsPerUs; };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

load::LoadOptions load_options(const Subject& subject, const TuneOptions& o, uint16_t port) {
  load::LoadOptions load;
  load.url = base::concat("http://127.0.0.1:", port);
  load.model = subject.name;
  load.shape = o.shape;
  load.range = o.range;
  load.batch = o.batch;
  load.seed = o.seed;
  load.text_file = o.text_file;
  return load;
}

bool sustains(const Measurement& m, const std::vector<LatencyGoal>& goals) {
  return m.meets(goals) && m.keeps_up;
}

}  // namespace

bool Measurement::meets(const std::vector<LatencyGoal>& goals) const {
  if (error_share >= 0.001 || throughput <= 0) return false;
  return std::all_of(goals.begin(), goals.end(), [this](const LatencyGoal& g) {
    const double ns = g.quantile == 0.5 ? p50_ns : g.quantile == 0.95 ? p95_ns : p99_ns;
    return ns <= static_cast<double>(g.bound_ns);
  });
}

base::Json Measurement::to_json() const {
  return base::Json::object({{"rate", rate},
                             {"clients", clients},
                             {"throughput", throughput},
                             {"p50_ns", p50_ns},
                             {"p95_ns", p95_ns},
                             {"p99_ns", p99_ns},
                             {"mean_ns", mean_ns},
                             {"error_share", error_share},
                             {"windows", windows},
                             {"stable", is_stable},
                             {"keeps_up", keeps_up},
                             {"peak_bytes", peak_bytes},
                             {"service_ns", service_ns},
                             {"cpu_ns", cpu_ns}});
}

Measurement Measurement::from_json(const base::Json& j) {
  Measurement m;
  m.rate = j.at("rate").as_double();
  m.clients = j.at("clients").as_int();
  m.throughput = j.at("throughput").as_double();
  m.p50_ns = j.at("p50_ns").as_double();
  m.p95_ns = j.at("p95_ns").as_double();
  m.p99_ns = j.at("p99_ns").as_double();
  m.mean_ns = j.at("mean_ns").as_double();
  m.error_share = j.at("error_share").as_double();
  m.windows = j.at("windows").as_int();
  m.is_stable = j.at("stable").as_bool();
  m.keeps_up = j.at("keeps_up").as_bool();
  m.peak_bytes = j.at("peak_bytes").as_int();
  m.service_ns = j.at("service_ns").as_double();
  m.cpu_ns = j.at("cpu_ns").as_double();
  return m;
}

void TrialBench::start(const Candidate& candidate) {
  if (served_ == candidate.id()) return;
  server_.reset();
  served_.clear();
  const std::string repository = options_.out + "/trial";
  write_model_directory(repository, subject_, candidate);
  server_ = std::make_unique<ChildServer>("/proc/self/exe", repository, subject_.name,
                                          options_.out + "/server.log");
  served_ = candidate.id();
}

Measurement TrialBench::measure(const Candidate& candidate, double rate, int64_t clients) {
  // To whole hundredths, so that the name of a rate is the same in every run.
  rate = std::round(rate * 100) / 100;
  const std::string id = base::concat("trial ", candidate.id(), " rate ", rate, " clients ", clients);
  if (const base::Json* known = journal_.find(id)) return Measurement::from_json(*known);
  start(candidate);
  progress_(base::concat("trial: ", candidate.id(),
                         clients > 0 ? base::concat(", ", clients, " clients")
                                     : base::concat(", ", rate, " requests a second")));
  const load::Payload payload = load::make_payload(load_options(subject_, options_, server_->port()));
  load::LoadPlan plan;
  plan.target = payload.target;
  plan.requests = &payload.requests;
  plan.concurrency = clients;
  plan.rate = rate;
  plan.connections = 512;
  plan.threads = std::clamp(base::read_cpu_info().threads() / 4, 1, 8);
  plan.warmup_ns = options_.trial.ns / 4;
  plan.duration_ns = options_.trial.ns;
  plan.timeout_ns = 30 * base::kNsPerSecond;
  plan.seed = static_cast<uint64_t>(options_.seed);
  const auto server_times = [&] {
    return load::ask_server_times(payload.target, payload.prefix, payload.models, payload.headers);
  };
  const std::vector<load::ServerTimes> before = server_times();
  const int64_t cpu_ns = server_->cpu_ns() + own_cpu_ns();
  const load::Settled settled = load::run_until_stable(plan, options_.stability / 100);
  const load::LoadResult& r = settled.result;
  Measurement m{.rate = rate, .clients = clients, .throughput = r.throughput()};
  m.p50_ns = static_cast<double>(r.quantile_with_errors(0.5));
  m.p95_ns = static_cast<double>(r.quantile_with_errors(0.95));
  m.p99_ns = static_cast<double>(r.quantile_with_errors(0.99));
  m.mean_ns = r.latency.mean();
  m.error_share = r.error_share();
  m.windows = settled.trials;
  m.is_stable = settled.is_stable;
  // A few are under way at the end of every window.
  constexpr int64_t kUnderWay = 3;
  const int64_t missing = r.scheduled - r.completed_in_window;
  m.keeps_up =
      rate == 0 || missing <= r.scheduled / 20 + kUnderWay * static_cast<int64_t>(load::Stability::kWindows);
  m.peak_bytes = server_->peak_bytes();
  for (const load::ServerTimes& s : load::difference(before, server_times()))
    m.service_ns = s.mean_of(s.compute_input_ns + s.compute_infer_ns + s.compute_output_ns);
  // Over all windows and warm-ups, of which the counted ones are a known part at a steady load.
  const double seconds =
      static_cast<double>(settled.trials) * 1.1 * static_cast<double>(plan.duration_ns) * 1e-9;
  m.cpu_ns =
      static_cast<double>(server_->cpu_ns() + own_cpu_ns() - cpu_ns) / std::max(1.0, seconds * m.throughput);
  journal_.add(id, m.to_json());
  return m;
}

FrontEnd TrialBench::front_end(const Candidate& candidate, const CostTable& costs) {
  const Measurement m = measure(candidate, 0, 1);
  double compute_ns = 0;
  for (size_t g = 0; g < subject_.groups.size(); ++g) {
    compute_ns += subject_.groups[g].share * costs.usual_ns(candidate.variant, candidate.layout, g,
                                                            std::max<int64_t>(1, options_.batch), 1);
  }
  // Both are means: of latencies, and of batches.
  compute_ns *= costs.mean_ratio(candidate.variant, candidate.layout);
  return {.overhead_ns = std::max(0.0, m.mean_ns - compute_ns),
          .cpu_ns = std::max(0.0, m.cpu_ns - compute_ns)};
}

void TrialBench::add(Trial& trial, Predictor& predictor, double rate, int64_t clients) {
  Compared c{.measured = measure(trial.predicted.candidate, rate, clients)};
  const Candidate& candidate = trial.predicted.candidate;
  constexpr int64_t kRequests = 40'000;
  c.predicted = predictor.describe(candidate, predictor.at(candidate, c.measured.rate, clients, kRequests),
                                   c.measured.rate);
  predictor.learn(candidate, {c.measured.rate, clients, c.measured.service_ns, c.measured.throughput,
                              c.measured.keeps_up});
  trial.runs.push_back(std::move(c));
}

namespace {

/// What to try after a load that held (the highest so far is `good`) or did not (`bad` is the lowest): what
/// the predictor says now, kept inside what is known, and not so near to either that nothing would be learnt.
double next_rate(double good, double bad, double promised) {
  if (good > 0 && bad > 0) {
    const double margin = 0.25 * (bad - good);
    return std::clamp(promised, good + margin, bad - margin);
  }
  if (good > 0) return std::clamp(promised, good * 1.05, good * 1.4);
  return std::clamp(promised * 0.97, bad * 0.3, bad * 0.93);
}

}  // namespace

void TrialBench::find_rate(Trial& trial, Predictor& predictor, const Wish& wish) {
  constexpr int kMostRuns = 5, kMostMisses = 9;
  constexpr double kPrecision = 1.05;
  constexpr int64_t kAgainRequests = 10'000;
  double good = 0, bad = 0, rate = trial.predicted.rate;
  for (int run = 0; run < (good > 0 ? kMostRuns : kMostMisses) && rate > 0.05; ++run) {
    add(trial, predictor, rate, 0);
    const Measurement& m = trial.runs.back().measured;
    if (sustains(m, wish.goals)) {
      good = rate;
      trial.best = static_cast<int>(trial.runs.size()) - 1;
    } else {
      bad = rate;
    }
    if (good > 0 && bad > 0 && bad / good <= kPrecision) break;
    const Prediction now = predictor.predict(trial.predicted.candidate, kAgainRequests, rate);
    // What fell behind, for whatever reason, carries no more than it answered.
    const double carried = m.keeps_up ? rate * 2 : m.throughput * 0.95;
    rate = next_rate(good, bad, std::min(carried, now.is_feasible ? now.rate : bad * 0.5));
  }
}

Trial TrialBench::run(const Prediction& prediction, Predictor& predictor, const Wish& wish) {
  Trial trial{.predicted = prediction};
  try {
    if (wish.clients > 0 || wish.rate > 0) {
      add(trial, predictor, wish.rate, wish.clients);
      if (sustains(trial.runs[0].measured, wish.goals)) trial.best = 0;
    } else {
      find_rate(trial, predictor, wish);
    }
  } catch (const base::Error& e) {
    if (e.code() != base::ErrorCode::unavailable) throw;
    trial.failure = e.message();
    server_.reset();
    served_.clear();
  }
  if (trial.best >= 0 && wish.memory_bytes > 0 &&
      trial.runs[static_cast<size_t>(trial.best)].measured.peak_bytes > wish.memory_bytes) {
    trial.failure = base::concat("it held ", trial.runs[static_cast<size_t>(trial.best)].measured.peak_bytes,
                                 " bytes, more than --memory");
    trial.best = -1;
  }
  return trial;
}

}  // namespace trireme::tune
