// The `tune` verb, in order: costs, predictions, trials, choice, reports.
#include "tune/tune.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/machine/cpu_info.h"
#include "base/files/file.h"
#include "base/threads/thread_pool.h"
#include "tune/model_directory.h"
#include "tune/report.h"

namespace trireme::tune {
namespace {

/// "0.40/h", "0.40": money an hour.
double price_of(const std::string& text) {
  if (text.empty()) return 1;
  char* rest = nullptr;
  const double price = std::strtod(text.c_str(), &rest);
  const std::string unit = rest;
  base::require(rest != text.c_str() && price > 0 && (unit.empty() || unit == "/h"),
                "--price is money an hour, such as 0.40/h, not '", text, "'");
  return price;
}

void check_tune_options(const TuneOptions& o) {
  if (o.model.size() > 1)
    base::fail_unsupported(
        "several models that share a machine are not tuned together: give one, and what it may "
        "use by --instances, --threads and --memory");
  base::require(o.rate == 0 || o.concurrency == 0, "--rate and --concurrency exclude each other");
  base::require(o.price.empty() || o.objective == Objective::cost, "--price needs --objective cost");
  base::require(o.probe.ns > 0 && o.trial.ns > 0, "--probe and --trial must be positive");
  price_of(o.price);
  for (const std::string& text : o.window) base::parse_duration(text);
  for (const base::Duration& d : {o.p50, o.p95, o.p99})
    base::require(d.ns >= 0, "a goal must not be negative");
}

Wish wish_of(const TuneOptions& o) {
  Wish wish{.goals = o.goals(), .objective = o.objective, .price_per_hour = price_of(o.price)};
  // Without a price, what counts is how much of the machine is used.
  wish.price_per = o.price.empty() ? PricePer::core : o.price_per;
  wish.machine_cores = base::read_cpu_info().threads();
  wish.memory_bytes = o.memory.bytes;
  wish.rate = o.rate;
  wish.clients = o.concurrency;
  wish.rows = o.batch;
  wish.seed = static_cast<uint64_t>(o.seed);
  return wish;
}

CostPlan cost_plan(const TuneOptions& o, const Subject& subject, const Wish& wish) {
  CostPlan plan{.layouts = layouts_of(wish.machine_cores, o.instances, o.threads),
                .probe_ns = o.probe.ns,
                .passes = o.passes};
  for (const LatencyGoal& g : wish.goals) plan.bound_ns = std::max(plan.bound_ns, g.bound_ns);
  if (!subject.is_batched()) {
    plan.rows = {1};
  } else if (!o.max_batch.empty()) {
    plan.rows = o.max_batch;
    plan.rows.push_back(o.batch);
    std::sort(plan.rows.begin(), plan.rows.end());
    plan.rows.erase(std::unique(plan.rows.begin(), plan.rows.end()), plan.rows.end());
    std::erase_if(plan.rows, [&](int64_t rows) { return rows < o.batch; });
  } else {
    for (int64_t rows = o.batch; rows <= std::max<int64_t>(64, o.batch); rows *= 2) plan.rows.push_back(rows);
  }
  return plan;
}

/// Windows worth trying: none, and some that leave most of the time for computing.
std::vector<int64_t> windows_of(const TuneOptions& o, int64_t bound_ns) {
  std::vector<int64_t> list;
  for (const std::string& text : o.window) list.push_back(base::parse_duration(text).ns);
  if (!list.empty()) return list;
  list = {0};
  for (int64_t ms : {1, 2, 5, 10, 20}) {
    if (bound_ns == 0 || 2 * ms * base::kNsPerMs <= bound_ns) list.push_back(ms * base::kNsPerMs);
  }
  return list;
}

/// The least server: what it takes beyond the batch is the front end.
Candidate least_candidate(const CostPlan& plan, const Subject& subject) {
  Candidate c{.layout = plan.layouts.front()};
  for (Layout layout : plan.layouts) {
    if (layout.cores() < c.layout.cores()) c.layout = layout;
  }
  if (!subject.is_batched()) return c;
  c.max_batch = plan.rows.front();
  c.row_buckets = {c.max_batch};
  return c;
}

/// A trial's configuration with the figures of one of its runs.
Prediction as_measured(const Trial& trial, size_t run, const Wish& wish) {
  Prediction p = trial.predicted;
  const Measurement& m = trial.runs[run].measured;
  p.is_feasible = static_cast<int>(run) == trial.best;
  p.rate = m.rate;
  p.throughput = m.throughput;
  p.p50_ns = m.p50_ns;
  p.p95_ns = m.p95_ns;
  p.p99_ns = m.p99_ns;
  p.memory_bytes = m.peak_bytes;
  const double share = wish.price_per == PricePer::core ? p.candidate.layout.cores() : 1;
  p.cost_per_million = wish.price_per_hour * share / 3600 / m.throughput * 1e6;
  return p;
}

/// By how much a run missed: its largest latency over its bound; one that fell behind counts its queue.
double miss_of(const Measurement& m, const Wish& wish) {
  double miss = m.keeps_up ? 0 : m.rate / std::max(m.throughput, 1e-9);
  for (const LatencyGoal& g : wish.goals) {
    const double ns = g.quantile == 0.5 ? m.p50_ns : g.quantile == 0.95 ? m.p95_ns : m.p99_ns;
    miss = std::max(miss, ns / static_cast<double>(g.bound_ns));
  }
  return miss;
}

/// Where nothing met the goal, the run that missed it least: what a trial has refuted is no choice.
void choose_nearest(TuneResult& r) {
  double least = std::numeric_limits<double>::infinity();
  for (const Trial& t : r.trials) {
    for (size_t run = 0; run < t.runs.size(); ++run) {
      const double miss = miss_of(t.runs[run].measured, r.wish);
      if (t.runs[run].measured.throughput <= 0 || miss >= least) continue;
      least = miss;
      r.chosen = as_measured(t, run, r.wish);
      r.is_chosen_measured = true;
    }
  }
}

/// Of what was measured the best; where nothing met the goal, the nearest that was measured, else predicted.
void choose(TuneResult& r) {
  for (size_t i = 0; i < r.trials.size(); ++i) {
    if (r.trials[i].best < 0) continue;
    const Prediction p = as_measured(r.trials[i], static_cast<size_t>(r.trials[i].best), r.wish);
    if (r.chosen_trial >= 0 && !is_better(p, r.chosen, r.wish)) continue;
    r.chosen = p;
    r.chosen_trial = static_cast<int>(i);
  }
  r.is_reached = r.is_chosen_measured = r.chosen_trial >= 0;
  if (r.is_reached) return;
  r.chosen = r.predictions.front();
  r.is_reached = r.trials.empty() && r.chosen.is_feasible;
  choose_nearest(r);
}

/// Curves of the choice, and of those that differ from it: most answers a second, and least latency.
std::vector<std::vector<Prediction>> curves_of(const TuneResult& r, const Predictor& predictor) {
  constexpr size_t kMost = 24;
  std::vector<Prediction> list{r.chosen};
  for (const Prediction& p : shortlist(r.predictions, r.predictions.size())) {
    // In steps, so that all kinds are seen.
    const bool is_new = std::none_of(list.begin(), list.end(), [&](const Prediction& q) {
      return q.candidate.id() == p.candidate.id() ||
             (list.size() > kMost / 2 && q.candidate.layout == p.candidate.layout &&
              q.candidate.variant == p.candidate.variant);
    });
    if (is_new && list.size() < kMost) list.push_back(p);
  }
  std::vector<std::vector<Prediction>> curves(list.size());
  base::ThreadPool pool(r.wish.machine_cores);
  pool.run(static_cast<int64_t>(list.size()), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    curves[at] = load_curve(predictor, list[at].candidate);
  });
  return curves;
}

/// The best few, each time the best by all that the trials before have taught.
void run_trials(TuneResult& r, const TuneOptions& options, TrialBench& bench, Predictor& predictor) {
  constexpr size_t kReserve = 3;
  constexpr int64_t kRequests = 10'000;
  const auto most = static_cast<size_t>(options.top);
  std::vector<Prediction> open = shortlist(r.predictions, kReserve * most);
  while (r.trials.size() < most && !open.empty()) {
    const auto best =
        std::min_element(open.begin(), open.end(),
                         [&](const Prediction& a, const Prediction& b) { return is_better(a, b, r.wish); });
    const Prediction chosen = *best;
    open.erase(best);
    r.trials.push_back(bench.run(chosen, predictor, r.wish));
    for (Prediction& p : open) {
      const bool is_taught =
          p.candidate.layout == chosen.candidate.layout && p.candidate.variant == chosen.candidate.variant;
      if (is_taught) p = predictor.predict(p.candidate, kRequests, p.rate);
    }
  }
}

void write_results(const TuneResult& result, const TuneOptions& options) {
  std::filesystem::remove_all(options.out + "/trial");
  write_model_directory(options.out + "/repository", result.subject, result.chosen.candidate);
  base::write_file_atomic(options.out + "/result.json",
                          json_report(result, options).dump({.indent = 1}) + "\n");
  base::write_file_atomic(options.out + "/report.md", markdown_report(result, options));
  base::write_file_atomic(options.out + "/report.html", html_report(result, options));
}

}  // namespace

TuneResult tune(const TuneOptions& options, const serve::OtherModels& others, const Progress& progress) {
  check_tune_options(options);
  const base::SystemClock clock;
  const int64_t start_ns = clock.now_ns();
  TuneResult result{.subject = open_subject(options, others), .wish = wish_of(options)};
  std::filesystem::create_directories(options.out);
  Journal journal(options.out + "/journal.jsonl", result.subject.key);
  result.resumed = journal.resumed();
  const CostPlan plan = cost_plan(options, result.subject, result.wish);
  const Costs costs = measure_costs(result.subject, plan, journal, progress);
  result.costs = costs.table;
  TrialBench bench(result.subject, options, journal, progress);
  if (options.top > 0) result.front = bench.front_end(least_candidate(plan, result.subject), costs.table);
  Predictor predictor(result.subject, costs, result.wish, result.front);
  const std::vector<Candidate> candidates =
      candidates_of(result.subject, plan, costs.table, windows_of(options, plan.bound_ns), result.wish);
  base::require(!candidates.empty(), "no configuration is left of --max-batch, --batch and the layouts");
  progress(base::concat("simulating ", candidates.size(), " configurations"));
  result.predictions = search(predictor, candidates, result.wish);
  run_trials(result, options, bench, predictor);
  choose(result);
  result.curves = curves_of(result, predictor);
  result.seconds = static_cast<double>(clock.now_ns() - start_ns) * 1e-9;
  write_results(result, options);
  return result;
}

}  // namespace trireme::tune
