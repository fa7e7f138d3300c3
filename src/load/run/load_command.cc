// The `load` verb: from options to plans, the sweep, and the search for the highest sustainable rate.
#include "load/run/load_command.h"

#include <algorithm>
#include <ctime>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/files/file.h"
#include "load/run/generator.h"
#include "load/requests/mix.h"
#include "load/requests/payload.h"
#include "load/run/search.h"
#include "load/run/sweep.h"
#include "load/requests/trace.h"

namespace trireme::load {
namespace {

using Progress = std::function<void(const std::string&)>;

/// What the server tells of itself when the counted time begins, asked from a thread of its own.
class ServerBefore {
 public:
  ServerBefore(const Payload& payload, int64_t warmup_ns) : payload_(payload) {
    if (payload.models.empty()) return;
    if (warmup_ns == 0) {
      ask();
      return;
    }
    thread_ = std::thread([this, warmup_ns] {
      constexpr int64_t kLookNs = 10 * base::kNsPerMs;
      const int64_t at_ns = base::SystemClock().now_ns() + warmup_ns;
      for (int64_t left; !is_over_ && (left = at_ns - base::SystemClock().now_ns()) > 0;)
        std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(kLookNs, left)));
      if (!is_over_) ask();
    });
  }
  ~ServerBefore() { join(); }
  ServerBefore(const ServerBefore&) = delete;
  ServerBefore& operator=(const ServerBefore&) = delete;

  /// What has been added until now.
  std::vector<ServerTimes> until_now() {
    join();
    if (times_.empty()) return {};
    return difference(times_,
                      ask_server_times(payload_.target, payload_.prefix, payload_.models, payload_.headers));
  }

 private:
  void ask() {
    times_ = ask_server_times(payload_.target, payload_.prefix, payload_.models, payload_.headers);
  }
  void join() {
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
  }

  const Payload& payload_;
  std::atomic<bool> is_over_{false};
  std::vector<ServerTimes> times_;
  std::thread thread_;
};

class Measurement {
 public:
  Measurement(const LoadOptions& options, const Payload& payload, const Progress& progress,
              const std::atomic<bool>* stop)
      : progress_(progress), payload_(payload) {
    for (const std::string& text : options.slo) slos_.push_back(Slo::parse(text));
    plan_.target = payload.target;
    plan_.records = !options.record.empty();
    plan_.stop = stop;
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
      warmup.records = false;
      if (!payload_.warm_up.empty()) {
        warmup.requests = &payload_.warm_up;
        warmup.mix = nullptr;  // which counts and orders the others
      }
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
    ServerBefore server(payload_, plan_.pacer == nullptr ? plan_.warmup_ns : 0);
    if (stability_ > 0 && plan_.pacer == nullptr) {
      Settled settled = run_until_stable(plan_, stability_);
      m.result = std::move(settled.result);
      m.trials = settled.trials;
      m.stable = settled.is_stable;
    } else {
      m.result = run_load(plan_);
    }
    m.result.title = title;
    // Prompts that were sent before are known to the server: the next run goes on behind them.
    plan_.first_request += m.result.taken;
    m.slos = judge(slos_, m.result);
    m.server = server.until_now();
    return m;
  }

  const Progress& progress_;
  const Payload& payload_;
  LoadPlan plan_;
  double stability_ = 0;
  std::vector<Slo> slos_;
};

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
  if (m.result.is_interrupted) m.scenario->invalid.push_back("interrupted");
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
  const bool finds = o.find_rate || o.find_concurrency;
  base::require(!finds || !o.slo.empty(), "--find-rate and --find-concurrency need at least one --slo");
  base::require(!o.find_concurrency || (!o.find_rate && o.rate == 0),
                "--find-concurrency goes without --rate and --find-rate");
  base::require(o.sweep.empty() || (o.rate == 0 && !finds), "--sweep goes without --rate and --find-…");
  base::require(o.scenario == Scenario::none || (o.trace.empty() && o.mix.empty()),
                "--scenario goes without --trace and --mix");
  base::require(o.trace.empty() || (o.sweep.empty() && o.rate == 0 && !finds),
                "--trace goes without --rate, --sweep and --find-…");
  base::require(o.scenario == Scenario::none || (o.sweep.empty() && !finds),
                "--scenario goes without --sweep and --find-…");
  base::require(o.rate == 0 || o.rate >= kLeastRate, "--rate is at least ", kLeastRate,
                ", or 0 for none, found ", o.rate);
  base::require(o.target_latency.ns > 0, "--target-latency must be positive");
  base::require(o.duration.ns > 0, "--duration must be positive");
  base::require(o.timeout.ns > 0, "--timeout must be positive");
  base::require(o.warmup.ns >= 0 && o.think.ns >= 0, "--warmup and --think must not be negative");
}

/// The record of the run. Headers may hold secrets: their names are kept.
base::Json recorded(LoadOptions options) {
  for (std::string& header : options.header) header = header.substr(0, header.find(':')) + ": ...";
  return base::OptionList(options).to_json();
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts));
  return text;
}

void run_all(const LoadOptions& options, const Payload& payload, Measurement& measurement, Report& report) {
  if (options.scenario != Scenario::none) {
    report.runs.push_back(run_scenario(options, payload, measurement));
  } else if (!options.trace.empty()) {
    report.runs.push_back(replay(options, payload, measurement));
  } else if (options.find_rate) {
    // Without a start rate: half of what one connection after the other gets through, measured.
    double start = options.rate;
    if (start <= 0) start = std::max(1.0, measurement.closed(options.concurrency).result.throughput() / 2);
    report.found_rate = find_highest({.start = start,
                                      .least = 0.01,
                                      .most = kMostRate,
                                      .run = [&](double rate) { return measurement.open(rate); }},
                                     report.runs);
  } else if (options.find_concurrency) {
    report.found_concurrency =
        find_highest({.start = static_cast<double>(options.concurrency),
                      .least = 1,
                      .most = 65536,
                      .is_whole = true,
                      .run = [&](double c) { return measurement.closed(static_cast<int64_t>(c)); }},
                     report.runs);
  } else if (options.rate > 0) {
    report.runs.push_back(measurement.open(options.rate));
  } else if (!options.sweep.empty()) {
    const Sweep sweep = Sweep::parse(options.sweep);
    for (const double at : sweep.points) {
      report.runs.push_back(sweep.rates ? measurement.open(at)
                                        : measurement.closed(static_cast<int64_t>(at)));
      if (report.is_interrupted()) break;
    }
  } else {
    report.runs.push_back(measurement.closed(options.concurrency));
  }
}

}  // namespace

Report measure(const LoadOptions& options, const Progress& progress, const std::atomic<bool>* stop) {
  check_options(options);
  const Payload payload = options.mix.empty()
                              ? make_payload(options)
                              : make_mix(parse_mix(base::parse_json(base::read_file(options.mix)), options),
                                         static_cast<uint64_t>(options.seed));
  Measurement measurement(options, payload, progress, stop);
  Report report;
  report.url = options.url;
  report.title = options.title.empty() ? "trireme load " + options.url : options.title;
  report.what = payload.description;
  report.items_per_request = payload.items_per_request;
  report.options = recorded(options);
  report.started = utc_now();
  try {
    run_all(options, payload, measurement, report);
  } catch (const base::Error& e) {
    if (report.runs.empty()) throw;
    report.failure = e;
  }
  return report;
}

bool goals_met(const Report& report) {
  if (report.found_rate >= 0) return report.found_rate > 0;
  if (report.found_concurrency >= 0) return report.found_concurrency > 0;
  return std::all_of(report.runs.begin(), report.runs.end(), [](const Measured& m) {
    return m.result.succeeded > 0 && all_met(m.slos) && (!m.scenario || m.scenario->invalid.empty());
  });
}

}  // namespace trireme::load
