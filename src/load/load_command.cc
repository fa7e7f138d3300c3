// The `load` verb: from options to plans, the sweep, and the search for the highest sustainable rate.
#include "load/load_command.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "load/generator.h"
#include "load/mix.h"
#include "load/payload.h"
#include "load/sweep.h"
#include "load/trace.h"

namespace trireme::load {
namespace {

using Progress = std::function<void(const std::string&)>;

class Measurement {
 public:
  Measurement(const LoadOptions& options, const Payload& payload, const Progress& progress)
      : progress_(progress) {
    for (const std::string& text : options.slo) slos_.push_back(Slo::parse(text));
    plan_.host = payload.url.host;
    plan_.port = payload.url.port;
    plan_.requests = &payload.requests;
    plan_.mix = &payload;
    stability_ = options.stability / 100;
    plan_.arrivals = options.arrivals;
    plan_.think_ns = options.think.ns;
    plan_.warmup_ns = options.warmup.ns;
    plan_.duration_ns = options.duration.ns;
    plan_.max_requests = options.requests;
    plan_.timeout_ns = options.timeout.ns;
    plan_.connections = options.connections;
    const auto processors = static_cast<int>(std::thread::hardware_concurrency());
    plan_.threads = options.threads > 0 ? options.threads : std::clamp(processors / 4, 1, 8);
    plan_.seed = static_cast<uint64_t>(options.seed);
  }

  /// Runs what the pacer says, after a closed loop of the warm-up's length.
  Measured paced(Pacer& pacer, const std::string& name, int64_t expected_ns) {
    LoadPlan warmup = plan_;
    if (plan_.warmup_ns > 0) {
      warmup.concurrency = 1;
      warmup.warmup_ns = 0;
      warmup.duration_ns = plan_.warmup_ns;
      warmup.max_requests = 0;
      run_load(warmup);
    }
    plan_.concurrency = 0;
    plan_.rate = 0;
    plan_.pacer = &pacer;
    plan_.duration_ns = expected_ns;
    return run(name);
  }

  const std::vector<Slo>& slos() const { return slos_; }

  Measured closed(int64_t concurrency) {
    plan_.concurrency = concurrency;
    plan_.rate = 0;
    return run();
  }
  Measured open(double rate) {
    plan_.concurrency = 0;
    plan_.rate = rate;
    return run();
  }

 private:
  Measured run(const std::string& title = "") {
    LoadResult shown;
    shown.title = title;
    shown.concurrency = plan_.concurrency;
    shown.offered_rate = plan_.rate;
    progress_(label_of(shown));
    Measured m;
    if (stability_ > 0 && plan_.pacer == nullptr) {
      Settled settled = run_until_stable(plan_, stability_);
      m.result = std::move(settled.result);
      m.trials = settled.trials;
      m.stable = settled.is_stable;
    } else {
      m.result = run_load(plan_);
    }
    m.result.title = title;
    m.slos = judge(slos_, m.result);
    return m;
  }

  const Progress& progress_;
  LoadPlan plan_;
  double stability_ = 0;
  std::vector<Slo> slos_;
};

// A rate is sustained if the goals are met and the server kept up: fewer answers than requests inside the
// window means a queue that grows, however good the latencies of a short run look.
bool sustained(const Measured& m) {
  constexpr double kKeptUp = 0.95;
  return all_met(m.slos) && m.result.throughput() >= kKeptUp * m.result.offered_rate &&
         m.result.error_share() < 0.01;
}

// Doubles from the start rate until a rate fails (or halves until one holds), then bisects the gap to 5 %.
void find_rate(Measurement& measurement, double rate, Report& report) {
  constexpr double kPrecision = 1.05;
  constexpr int kMostRuns = 24;
  double good = 0, bad = 0;
  while (static_cast<int>(report.runs.size()) < kMostRuns) {
    report.runs.push_back(measurement.open(rate));
    (sustained(report.runs.back()) ? good : bad) = rate;
    if (good > 0 && bad > 0 && bad / good <= kPrecision) break;
    rate = bad == 0 ? good * 2 : good == 0 ? bad / 2 : (good + bad) / 2;
    if (rate < 0.01) break;
  }
  report.found_rate = good;
  std::sort(report.runs.begin(), report.runs.end(), [](const Measured& a, const Measured& b) {
    return a.result.offered_rate < b.result.offered_rate;
  });
}

ScenarioSettings scenario_settings(const LoadOptions& o, const Payload& payload) {
  ScenarioSettings s;
  s.scenario = o.scenario;
  s.min_duration_ns = o.duration.ns;
  s.min_queries = o.min_queries;
  s.max_queries = o.requests;
  s.percentile = o.percentile;
  s.samples_per_query = o.samples_per_query;
  if (o.rate > 0) s.target_qps = o.rate;
  s.bound_ns = o.target_latency.ns;
  s.sample_count = payload.requests.size();
  // Seed 1 means the rules' own seeds.
  s.sample_seed += static_cast<uint64_t>(o.seed) - 1;
  s.schedule_seed += static_cast<uint64_t>(o.seed) - 1;
  return s;
}

Measured run_scenario(const LoadOptions& options, const Payload& payload, Measurement& measurement) {
  const ScenarioSettings settings = scenario_settings(options, payload);
  ScenarioPacer pacer(settings);
  Measured m = measurement.paced(pacer, to_string(settings.scenario), settings.min_duration_ns);
  m.scenario = pacer.result();
  return m;
}

Measured replay(const LoadOptions& options, const Payload& payload, Measurement& measurement) {
  std::vector<Arrival> arrivals = parse_trace(base::read_file(options.trace));
  if (options.requests > 0 && static_cast<int64_t>(arrivals.size()) > options.requests)
    arrivals.resize(static_cast<size_t>(options.requests));
  TracePacer pacer(arrivals, requests_of(arrivals, payload), options.speed);
  return measurement.paced(pacer, "trace", std::max<int64_t>(pacer.duration_ns(), 1));
}

void check_options(const LoadOptions& o) {
  base::require(!o.find_rate || !o.slo.empty(), "--find-rate needs at least one --slo");
  base::require(o.sweep.empty() || (o.rate == 0 && !o.find_rate),
                "--sweep goes without --rate and --find-rate");
  base::require(o.scenario == Scenario::none || (o.trace.empty() && o.mix.empty()),
                "--scenario goes without --trace and --mix");
  base::require(o.trace.empty() || (o.sweep.empty() && o.rate == 0 && !o.find_rate),
                "--trace goes without --rate, --sweep and --find-rate");
  base::require(o.scenario == Scenario::none || (o.sweep.empty() && !o.find_rate),
                "--scenario goes without --sweep and --find-rate");
  base::require(o.target_latency.ns > 0, "--target-latency must be positive");
  base::require(o.duration.ns > 0, "--duration must be positive");
  base::require(o.timeout.ns > 0, "--timeout must be positive");
  base::require(o.warmup.ns >= 0 && o.think.ns >= 0, "--warmup and --think must not be negative");
}

}  // namespace

Report measure(const LoadOptions& options, const Progress& progress) {
  check_options(options);
  const Payload payload = options.mix.empty()
                              ? make_payload(options)
                              : make_mix(parse_mix(base::parse_json(base::read_file(options.mix)), options),
                                         static_cast<uint64_t>(options.seed));
  Measurement measurement(options, payload, progress);
  Report report;
  report.url = options.url;
  report.title = options.title.empty() ? "trireme load " + options.url : options.title;
  report.what = payload.description;
  report.items_per_request = payload.items_per_request;
  LoadOptions recorded = options;
  report.options = base::OptionList(recorded).to_json();
  if (options.scenario != Scenario::none) {
    report.runs.push_back(run_scenario(options, payload, measurement));
  } else if (!options.trace.empty()) {
    report.runs.push_back(replay(options, payload, measurement));
  } else if (options.find_rate) {
    // Without a start rate: half of what one connection after the other gets through, measured.
    double start = options.rate;
    if (start <= 0) start = std::max(1.0, measurement.closed(options.concurrency).result.throughput() / 2);
    find_rate(measurement, start, report);
  } else if (options.rate > 0) {
    report.runs.push_back(measurement.open(options.rate));
  } else if (!options.sweep.empty()) {
    const Sweep sweep = Sweep::parse(options.sweep);
    for (const double at : sweep.points)
      report.runs.push_back(sweep.rates ? measurement.open(at)
                                        : measurement.closed(static_cast<int64_t>(at)));
  } else {
    report.runs.push_back(measurement.closed(options.concurrency));
  }
  return report;
}

bool goals_met(const Report& report) {
  if (report.found_rate >= 0) return report.found_rate > 0;
  return std::all_of(report.runs.begin(), report.runs.end(), [](const Measured& m) {
    return all_met(m.slos) && (!m.scenario || m.scenario->invalid.empty());
  });
}

}  // namespace trireme::load
