// What a scenario's run was worth, as text and JSON.
#include <array>

#include "load/report/report.h"

namespace trireme::load {
namespace {

// The percentiles that LoadGen's summary prints.
constexpr std::array<double, 6> kShares = {0.50, 0.90, 0.95, 0.97, 0.99, 0.999};

std::string latency_text(int64_t ns) {
  return ns == Pacer::kNever ? "never" : format_ms(static_cast<double>(ns)) + " ms";
}

std::string share_name(double share) {
  std::string digits = format_number(share * 100, 1);
  if (digits.ends_with(".0")) digits.resize(digits.size() - 2);
  return "p" + digits;
}

std::string metric_text(const ScenarioResult& r) {
  const std::string name = share_name(r.settings.percentile_or_default());
  switch (r.settings.scenario) {
    case Scenario::server: {
      const double completed = r.last_answer_ns > 0 ? static_cast<double>(r.queries - 1) * 1e9 /
                                                          static_cast<double>(r.last_answer_ns)
                                                    : 0;
      return "scheduled queries a second: " + format_number(r.metric, 2) +
             ", completed: " + format_number(completed, 2);
    }
    case Scenario::offline: return "samples a second: " + format_number(r.metric, 2);
    default:
      return r.early.enough ? name + " latency, early-stopping estimate: " + format_ms(r.metric) + " ms"
                            : name + " latency, no estimate: " + latency_text(r.percentile_ns);
  }
}

std::string early_text(const ScenarioResult& r) {
  if (r.settings.scenario == Scenario::offline) return "";
  if (r.settings.scenario == Scenario::server) {
    return "early stopping: " + std::to_string(r.over_bound) + " over the bound need " +
           std::to_string(r.needed_for_over) + " queries, had " + std::to_string(r.queries) + "\n";
  }
  return "early stopping: " + std::to_string(r.queries) + " queries allow " +
         std::to_string(std::max<int64_t>(r.early.allowed, 0)) + " above the estimate, one is needed\n";
}

}  // namespace

std::string scenario_text(const ScenarioResult& r) {
  std::string out = std::string("scenario ") + to_string(r.settings.scenario) + ": " +
                    (r.invalid.empty() ? "VALID" : "INVALID") + "\n";
  for (const std::string& reason : r.invalid) out += "  " + reason + "\n";
  out += metric_text(r) + "\n";
  out += "queries " + std::to_string(r.queries) + ", samples " + std::to_string(r.samples) +
         ", issued over " + format_number(static_cast<double>(r.issued_duration_ns) / 1e9, 2) +
         " s, last answer at " + format_number(static_cast<double>(r.last_answer_ns) / 1e9, 2) + " s\n";
  out += early_text(r);
  if (r.settings.scenario == Scenario::offline) return out;
  out += "query latency";
  for (const double share : kShares)
    out += "  " + share_name(share) + " " + latency_text(r.latency_at(share));
  return out + "\n";
}

base::Json scenario_json(const ScenarioResult& r) {
  base::Json out;
  out.set("scenario", to_string(r.settings.scenario));
  out.set("valid", r.invalid.empty());
  base::Json reasons = base::Json::array();
  for (const std::string& reason : r.invalid) reasons.push_back(reason);
  out.set("invalid", reasons);
  out.set("metric", r.metric);
  out.set("metric_unit", r.settings.scenario == Scenario::server    ? "queries/s"
                         : r.settings.scenario == Scenario::offline ? "samples/s"
                                                                    : "ns");
  out.set("queries", r.queries);
  out.set("samples", r.samples);
  out.set("failed", r.failed);
  out.set("issued_duration_ns", r.issued_duration_ns);
  out.set("last_answer_ns", r.last_answer_ns);
  out.set("percentile", r.settings.percentile_or_default());
  out.set("min_queries", r.settings.min_queries_or_default());
  out.set("min_duration_ns", r.settings.min_duration_ns);
  // Seeds are 64 bits wide, JSON readers often keep 53.
  out.set("sample_seed", std::to_string(r.settings.sample_seed));
  out.set("schedule_seed", std::to_string(r.settings.schedule_seed));
  if (r.settings.scenario == Scenario::server) {
    out.set("target_qps", r.settings.target_qps);
    out.set("bound_ns", r.settings.bound_ns);
    out.set("over_bound", r.over_bound);
    out.set("early_stopping_needs", r.needed_for_over);
  } else if (r.settings.scenario != Scenario::offline) {
    out.set("early_stopping_allows", r.early.allowed);
    if (r.early.enough) out.set("estimate_ns", r.early.estimate_ns);
  }
  if (r.settings.scenario == Scenario::offline) return out;
  base::Json latency;
  for (const double share : kShares) {
    const int64_t ns = r.latency_at(share);
    if (ns != Pacer::kNever) latency.set(share_name(share), ns);  // absent: a failed query
  }
  out.set("query_latency_ns", latency);
  return out;
}

}  // namespace trireme::load
