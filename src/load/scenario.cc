// The scenarios' issue rules and validity rules.
#include "load/scenario.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/text/options.h"
#include "load/result.h"

namespace trireme::load {
namespace {

constexpr int64_t kMinQueries = 100;
constexpr int64_t kMinOfflineSamples = 24'576;
// A run with a failed query is not valid; so many of them end it.
constexpr int64_t kMostFailures = 100;

int64_t offline_samples(const ScenarioSettings& s) {
  const double expected = s.target_qps * static_cast<double>(s.min_duration_ns) / 1e9 * 1.1;
  const int64_t wanted = std::max(s.min_queries_or_default(), static_cast<int64_t>(std::ceil(expected)));
  return s.max_queries > 0 ? std::min(wanted, s.max_queries) : wanted;
}

void judge_counts(ScenarioResult& r) {
  const ScenarioSettings& s = r.settings;
  if (r.failed > 0) r.invalid.push_back(std::to_string(r.failed) + " queries failed");
  if (r.queries < s.min_queries_or_default()) {
    r.invalid.push_back("minimum count not met: " + std::to_string(r.queries) + " of " +
                        std::to_string(s.min_queries_or_default()));
  }
  if (r.issued_duration_ns < s.min_duration_ns) {
    r.invalid.push_back(
        "minimum duration not met: " + format_number(static_cast<double>(r.issued_duration_ns) / 1e9, 3) +
        " s of " + format_number(static_cast<double>(s.min_duration_ns) / 1e9, 3) + " s" +
        (s.scenario == Scenario::offline ? "; raise --rate, the expected rate" : ""));
  }
}

void judge_stream(ScenarioResult& r) {
  r.early = early_stopping_estimate(r.sorted_ns, r.settings.percentile_or_default());
  if (!r.early.enough) {
    r.invalid.push_back("early stopping needs " + std::to_string(r.early.needed) + " queries, had " +
                        std::to_string(r.queries));
    r.metric = static_cast<double>(r.percentile_ns);
    return;
  }
  r.metric = static_cast<double>(r.early.estimate_ns);
}

void judge_server(ScenarioResult& r) {
  const ScenarioSettings& s = r.settings;
  const auto first_over = std::upper_bound(r.sorted_ns.begin(), r.sorted_ns.end(), s.bound_ns);
  r.over_bound = r.sorted_ns.end() - first_over;
  r.needed_for_over = queries_needed(r.over_bound, s.percentile_or_default());
  // Gaps a second: as LoadGen counts, the first query comes at time 0 and has none.
  r.metric = r.issued_duration_ns > 0
                 ? static_cast<double>(r.queries - 1) * 1e9 / static_cast<double>(r.issued_duration_ns)
                 : 0;
  if (r.percentile_ns > s.bound_ns) {
    const std::string measured = r.percentile_ns == Pacer::kNever
                                     ? std::string("a failed query")
                                     : format_ms(static_cast<double>(r.percentile_ns)) + " ms";
    r.invalid.push_back("latency percentile over the bound: " + measured + ", bound " +
                        format_ms(static_cast<double>(s.bound_ns)) + " ms");
  }
  if (r.queries < r.needed_for_over) {
    r.invalid.push_back("early stopping needs " + std::to_string(r.needed_for_over) + " queries for " +
                        std::to_string(r.over_bound) + " over the bound, had " + std::to_string(r.queries));
  }
}

}  // namespace

const char* to_string(Scenario scenario) {
  constexpr std::array<const char*, 5> kNames = {"none", "single_stream", "multi_stream", "server",
                                                 "offline"};
  return kNames[static_cast<size_t>(scenario)];
}

double ScenarioSettings::percentile_or_default() const {
  if (percentile > 0) return percentile;
  return scenario == Scenario::single_stream ? 0.90 : 0.99;
}

int64_t ScenarioSettings::min_queries_or_default() const {
  if (min_queries > 0) return min_queries;
  return scenario == Scenario::offline ? kMinOfflineSamples : kMinQueries;
}

int64_t ScenarioResult::latency_at(double q) const {
  if (sorted_ns.empty()) return Pacer::kNever;
  const auto at = static_cast<size_t>(static_cast<double>(sorted_ns.size()) * q);
  return sorted_ns[std::min(at, sorted_ns.size() - 1)];
}

ScenarioPacer::ScenarioPacer(const ScenarioSettings& settings)
    : settings_(settings),
      sample_rng_(static_cast<std::mt19937::result_type>(settings.sample_seed)),
      schedule_rng_(static_cast<std::mt19937::result_type>(settings.schedule_seed)) {
  base::require(settings.scenario != Scenario::none, "there is no scenario to pace");
  base::require(settings.sample_count > 0, "a scenario needs at least one sample");
  base::require(settings.samples_per_query > 0, "a query needs at least one sample");
  base::require(settings.target_qps > 0, "a scenario needs a positive rate");
  base::require(settings.percentile >= 0 && settings.percentile < 1, "percentile is not between 0 and 1");
  if (settings.scenario == Scenario::multi_stream) query_size_ = settings.samples_per_query;
  if (settings.scenario == Scenario::offline) query_size_ = offline_samples(settings);
  skip_shuffles();
}

// Before it draws, LoadGen (6.0) shuffles the loaded set, padded for multi stream, once for every pass that
// the least number of queries makes of it, and then the places where queries may begin. Modes that are not
// ours use the results; here they only move the generator on.
void ScenarioPacer::skip_shuffles() {
  if (settings_.scenario == Scenario::offline) return;
  const bool is_multi = settings_.scenario == Scenario::multi_stream;
  const auto stride = static_cast<size_t>(is_multi ? query_size_ : 1);
  std::vector<size_t> padded(settings_.sample_count + stride - 1);
  const auto least = static_cast<size_t>(settings_.min_queries_or_default());
  for (size_t done = 0; done < least; done += padded.size())
    std::shuffle(padded.begin(), padded.end(), sample_rng_);
  std::vector<size_t> starts((settings_.sample_count + stride - 1) / stride);
  std::shuffle(starts.begin(), starts.end(), sample_rng_);
}

bool ScenarioPacer::stream() const {
  return settings_.scenario == Scenario::single_stream || settings_.scenario == Scenario::multi_stream;
}

// Enough queries, and time enough when the newest was scheduled (server) or answered (streams).
bool ScenarioPacer::enough(int64_t at_ns) const {
  const auto count = static_cast<int64_t>(queries_.size());
  if (settings_.max_queries > 0 && count >= settings_.max_queries) return true;
  return at_ns >= settings_.min_duration_ns && count >= settings_.min_queries_or_default();
}

int64_t ScenarioPacer::next_ns() const { return done_ ? kNever : next_query_ns_; }

void ScenarioPacer::begin_query(int64_t scheduled_ns) {
  Query& q = queries_.emplace_back();
  q.scheduled_ns = scheduled_ns;
  q.open = query_size_;
  if (settings_.scenario == Scenario::offline) return;
  std::uniform_int_distribution<size_t> any(0, settings_.sample_count - 1);
  first_sample_ = any(sample_rng_);
}

Send ScenarioPacer::take(int64_t now_ns) {
  if (issued_ == 0) begin_query(stream() ? now_ns : next_query_ns_);
  const Query& q = queries_.back();
  const size_t sample = (first_sample_ + static_cast<size_t>(issued_)) % settings_.sample_count;
  const Send send{q.scheduled_ns, sample, static_cast<int64_t>(queries_.size()) - 1};
  if (++issued_ < query_size_) return send;
  issued_ = 0;
  if (settings_.scenario == Scenario::offline) {
    done_ = true;
  } else if (settings_.scenario == Scenario::server) {
    done_ = done_ || enough(next_query_ns_);
    std::exponential_distribution<double> gap(settings_.target_qps);
    next_query_ns_ += static_cast<int64_t>(gap(schedule_rng_) * 1e9);
  } else {
    next_query_ns_ = kNever;
  }
  return send;
}

void ScenarioPacer::answered(int64_t query, int64_t now_ns, bool success) {
  Query& q = queries_[static_cast<size_t>(query)];
  --q.open;
  q.ended_ns = std::max(q.ended_ns, now_ns);
  if (!success) {
    q.failed = true;
    if (++failed_ >= kMostFailures) done_ = true;
  }
  if (stream() && q.open == 0) {
    done_ = done_ || enough(now_ns);
    next_query_ns_ = now_ns;
  }
}

bool ScenarioPacer::done() const { return done_; }

ScenarioResult ScenarioPacer::result() const {
  ScenarioResult r;
  r.settings = settings_;
  for (const Query& q : queries_) {
    const bool failed = q.failed || q.open > 0;
    if (failed) ++r.failed;
    r.sorted_ns.push_back(failed ? kNever : q.ended_ns - q.scheduled_ns);
    r.last_answer_ns = std::max(r.last_answer_ns, q.ended_ns);
  }
  std::sort(r.sorted_ns.begin(), r.sorted_ns.end());
  const bool offline = settings_.scenario == Scenario::offline;
  const auto count = static_cast<int64_t>(queries_.size());
  r.samples = count * query_size_;
  r.queries = offline ? r.samples : count;
  r.percentile_ns = r.latency_at(settings_.percentile_or_default());
  r.issued_duration_ns = settings_.scenario == Scenario::server
                             ? (queries_.empty() ? 0 : queries_.back().scheduled_ns)
                             : r.last_answer_ns;
  judge_counts(r);
  if (stream()) {
    judge_stream(r);
  } else if (settings_.scenario == Scenario::server) {
    judge_server(r);
  } else if (r.last_answer_ns > 0) {
    r.metric = static_cast<double>(r.samples) * 1e9 / static_cast<double>(r.last_answer_ns);
  }
  return r;
}

}  // namespace trireme::load
