// Text and JSON reports of load tests.
#include "load/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/options.h"

namespace trireme::load {
namespace {

struct Percentile {
  const char* name;
  double quantile;
};
constexpr std::array<Percentile, 5> kPercentiles = {
    {{"p50", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}, {"p99.9", 0.999}}};

std::string pad(const std::string& text, size_t width) {
  return text.size() >= width ? text + " " : std::string(width - text.size(), ' ') + text;
}

void append_errors(std::string& out, const LoadResult& r) {
  for (const auto& [name, count] : r.errors) out += "  error " + name + ": " + std::to_string(count) + "\n";
}

std::string interval_text(Bounds b, bool ms) {
  return ms ? format_ms(b.low) + " - " + format_ms(b.high)
            : format_number(b.low, 1) + " - " + format_number(b.high, 1);
}

std::string class_table(const LoadResult& r) {
  if (r.classes.empty()) return "";
  std::string out = pad("class", 16) + pad("succeeded", 11) + pad("failed", 9);
  for (const Percentile& p : kPercentiles) out += pad(std::string(p.name) + " ms", 11);
  out += "\n";
  for (const ClassResult& c : r.classes) {
    out += pad(c.name, 16) + pad(std::to_string(c.latency.count()), 11) + pad(std::to_string(c.failed), 9);
    for (const Percentile& p : kPercentiles)
      out += pad(format_ms(static_cast<double>(c.latency.quantile(p.quantile))), 11);
    out += "\n";
  }
  return out;
}

// One run: every figure with its 95 % interval.
std::string single_report(const Report& report, const Measured& m) {
  const LoadResult& r = m.result;
  std::string out;
  out += "throughput  " + format_number(r.throughput(), 1) +
         " requests/s (95 %: " + interval_text(throughput_bounds(r), false) + ")";
  if (report.items_per_request > 1) {
    out +=
        ", " + format_number(r.throughput() * static_cast<double>(report.items_per_request), 1) + " items/s";
  }
  out += "\n";
  out += "requests    " + std::to_string(r.scheduled) + " in " + format_number(r.window_s, 2) +
         " s: " + std::to_string(r.succeeded) + " succeeded, " + std::to_string(r.error_count()) +
         " failed\n";
  append_errors(out, r);
  out += "latency from the scheduled time, ms (95 % interval, " + format_number(effective_samples(r), 0) +
         " effective samples)\n";
  for (const Percentile& p : kPercentiles) {
    const auto ns = static_cast<double>(r.latency.quantile(p.quantile));
    out += pad(p.name, 8) + pad(format_ms(ns), 11) + "   (" +
           interval_text(quantile_bounds(r, p.quantile), true) + ")\n";
  }
  out += pad("mean", 8) + pad(format_ms(r.latency.mean()), 11) + "\n";
  out += pad("max", 8) + pad(format_ms(static_cast<double>(r.latency.max())), 11) + "\n";
  // Waiting in the generator shows only in an open loop that the server cannot follow.
  const auto waited = static_cast<double>(r.latency.quantile(0.5) - r.service.quantile(0.5));
  if (r.offered_rate > 0)
    out += "of which waiting for a connection at p50: " + format_ms(std::max(0.0, waited)) + " ms\n";
  return out + class_table(r);
}

std::string table(const Report& report) {
  std::string out = pad("load", 12) + pad("req/s", 12);
  for (const Percentile& p : kPercentiles) out += pad(std::string(p.name) + " ms", 11);
  out += pad("failed", 9) + pad("goals", 8) + "\n";
  for (const Measured& m : report.runs) {
    const LoadResult& r = m.result;
    out += pad(label_of(r), 12) + pad(format_number(r.throughput(), 1), 12);
    for (const Percentile& p : kPercentiles) {
      out += pad(format_ms(static_cast<double>(r.latency.quantile(p.quantile))), 11);
    }
    out += pad(std::to_string(r.error_count()), 9) +
           pad(m.slos.empty()    ? "-"
               : all_met(m.slos) ? "met"
                                 : "MISSED",
               8) +
           "\n";
  }
  for (const Measured& m : report.runs) {
    if (m.result.error_count() == 0) continue;
    out += label_of(m.result) + ":\n";
    append_errors(out, m.result);
  }
  return out;
}

base::Json bounds_json(Bounds b) { return base::Json::array({b.low, b.high}); }

base::Json classes_json(const LoadResult& r) {
  base::Json out = base::Json::array();
  for (const ClassResult& c : r.classes) {
    base::Json item =
        base::Json::object({{"name", c.name}, {"succeeded", c.latency.count()}, {"failed", c.failed}});
    base::Json latency;
    for (const Percentile& p : kPercentiles) latency.set(p.name, c.latency.quantile(p.quantile));
    item.set("latency_ns", latency);
    out.push_back(item);
  }
  return out;
}

base::Json run_json(const Measured& m) {
  const LoadResult& r = m.result;
  base::Json run;
  run.set("label", label_of(r));
  run.set("concurrency", r.concurrency);
  run.set("offered_rate", r.offered_rate);
  run.set("window_s", r.window_s);
  run.set("scheduled", r.scheduled);
  run.set("succeeded", r.succeeded);
  run.set("failed", r.error_count());
  base::Json errors = base::Json::object();
  for (const auto& [name, count] : r.errors) errors.set(name, count);
  run.set("errors", errors);
  run.set("throughput", r.throughput());
  run.set("throughput_95", bounds_json(throughput_bounds(r)));
  run.set("sent_bytes", r.sent_bytes);
  run.set("received_bytes", r.received_bytes);
  run.set("effective_samples", effective_samples(r));
  base::Json latency, intervals;
  for (const Percentile& p : kPercentiles) {
    latency.set(p.name, r.latency.quantile(p.quantile));
    latency.set(std::string(p.name) + "_95", bounds_json(quantile_bounds(r, p.quantile)));
  }
  latency.set("mean", r.latency.mean());
  latency.set("min", r.latency.min());
  latency.set("max", r.latency.max());
  run.set("latency_ns", latency);
  base::Json service;
  for (const Percentile& p : kPercentiles) service.set(p.name, r.service.quantile(p.quantile));
  run.set("service_ns", service);
  intervals = base::Json::array();
  for (const Interval& i : r.intervals) {
    intervals.push_back(base::Json::object({{"completed", i.completed},
                                            {"errors", i.errors},
                                            {"p50_ns", i.latency.quantile(0.5)},
                                            {"p99_ns", i.latency.quantile(0.99)}}));
  }
  run.set("interval_ns", r.interval_ns);
  run.set("intervals", intervals);
  base::Json slos = base::Json::array();
  for (const SloOutcome& o : m.slos) {
    base::Json goal = base::Json::object({{"goal", o.slo.text}, {"met", o.met}});
    if (std::isfinite(o.measured)) goal.set("measured", o.measured);  // absent: a failed request decided it
    slos.push_back(std::move(goal));
  }
  run.set("slo", slos);
  if (!r.classes.empty()) run.set("classes", classes_json(r));
  if (m.trials > 0) {
    run.set("trials", m.trials);
    run.set("stable", m.stable);
  }
  if (m.scenario) run.set("scenario", scenario_json(*m.scenario));
  return run;
}

}  // namespace

std::string format_ms(double ns) {
  const double ms = ns / 1e6;
  return format_number(ms, ms < 1 ? 4 : ms < 10 ? 3 : ms < 100 ? 2 : 1);
}

std::string label_of(const LoadResult& result) {
  if (!result.title.empty()) return result.title;
  if (result.concurrency > 0) return "c=" + std::to_string(result.concurrency);
  return format_number(result.offered_rate, 1) + "/s";
}

std::string text_report(const Report& report) {
  std::string out = report.url + ": " + report.what + "\n";
  if (report.runs.size() == 1) {
    out += label_of(report.runs[0].result) + "\n" + single_report(report, report.runs[0]);
  } else {
    out += table(report);
  }
  for (const Measured& m : report.runs) {
    if (m.trials > 0 && !m.stable)
      out += label_of(m.result) + " did not settle in " + std::to_string(m.trials) + " windows\n";
    if (m.scenario) out += scenario_text(*m.scenario);
  }
  for (const Measured& m : report.runs) {
    for (const SloOutcome& o : m.slos) {
      out +=
          "goal " + (report.runs.size() > 1 ? label_of(m.result) + " " : std::string()) + to_string(o) + "\n";
    }
  }
  if (report.found_rate >= 0) {
    out += "highest rate that met every goal: " + format_number(report.found_rate, 1) + " requests/s\n";
  }
  return out;
}

base::Json json_report(const Report& report) {
  base::Json out;
  out.set("title", report.title);
  out.set("url", report.url);
  out.set("what", report.what);
  out.set("items_per_request", report.items_per_request);
  out.set("options", report.options);
  if (report.found_rate >= 0) out.set("found_rate", report.found_rate);
  base::Json runs = base::Json::array();
  for (const Measured& m : report.runs) runs.push_back(run_json(m));
  out.set("runs", runs);
  return out;
}

}  // namespace trireme::load
