// Text and JSON reports of load tests.
#include "load/report/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/text/options.h"

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

std::string us_text(double ns) { return format_number(ns / 1e3, 1); }

// What streams add: the time to the first part and between parts.
std::string stream_text(const LoadResult& r) {
  if (r.first_part.count() == 0) return "";
  std::string out = "parts       " + std::to_string(r.parts) + ", " +
                    format_number(static_cast<double>(r.parts) / std::max(r.window_s, 1e-9), 1) +
                    " a second\n";
  const auto row = [&](const char* name, const base::Histogram& times) {
    out += name;
    for (const Percentile& p : kPercentiles)
      out += "  " + std::string(p.name) + " " + format_ms(static_cast<double>(times.quantile(p.quantile)));
    out += "\n";
  };
  row("to the first part, ms: ", r.first_part);
  if (r.between_parts.count() > 0) row("between parts, ms:     ", r.between_parts);
  return out;
}

std::string server_text(const std::vector<ServerTimes>& models) {
  std::string out;
  for (const ServerTimes& s : models) {
    if (s.requests <= 0) continue;
    out += "server " + s.model + ", mean us of a request: queue " + us_text(s.mean_of(s.queue_ns)) +
           ", compute input " + us_text(s.mean_of(s.compute_input_ns)) + ", infer " +
           us_text(s.mean_of(s.compute_infer_ns)) + ", output " + us_text(s.mean_of(s.compute_output_ns)) +
           "; " + format_number(s.mean_batch(), 2) + " rows a batch\n";
  }
  return out;
}

std::string effort_text(const LoadResult& r) {
  const Effort& e = r.effort;
  return "generator: busiest thread " + format_number(e.busy_share * 100, 0) +
         " % of a core, waited for one " + format_number(e.waited_share * 100, 0) +
         " % of the time, sends late by p99 " + format_ms(static_cast<double>(e.late.quantile(0.99))) +
         " ms\n";
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
  if (r.succeeded == 0) return out + effort_text(r);
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
  if (r.concurrency == 0 && r.effort.starved > 0) {
    out += "of which waiting for a connection: ";
    for (const double q : {0.5, 0.99}) {
      const auto waited = static_cast<double>(r.latency.quantile(q) - r.service.quantile(q));
      out += (q == 0.5 ? "p50 " : ", p99 ") + format_ms(std::max(0.0, waited)) + " ms";
    }
    out += "\n";
  }
  return out + stream_text(r) + class_table(r) + server_text(m.server) + effort_text(r);
}

std::string table(const Report& report) {
  std::string out = pad("load", 12) + pad("req/s", 12);
  for (const Percentile& p : kPercentiles) out += pad(std::string(p.name) + " ms", 11);
  out += pad("failed", 9) + pad("goals", 8) + "\n";
  for (const Measured& m : report.runs) {
    const LoadResult& r = m.result;
    out += pad(label_of(r), 12) + pad(format_number(r.throughput(), 1), 12);
    for (const Percentile& p : kPercentiles) {
      const auto ns = static_cast<double>(r.latency.quantile(p.quantile));
      out += pad(r.succeeded > 0 ? format_ms(ns) : "-", 11);
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

base::Json stream_json(const LoadResult& r) {
  base::Json out = base::Json::object({{"parts", r.parts}}), first, between;
  for (const Percentile& p : kPercentiles) {
    first.set(p.name, r.first_part.quantile(p.quantile));
    between.set(p.name, r.between_parts.quantile(p.quantile));
  }
  out.set("first_part_ns", first);
  if (r.between_parts.count() > 0) out.set("between_parts_ns", between);
  return out;
}

base::Json server_json(const std::vector<ServerTimes>& models) {
  base::Json out = base::Json::array();
  for (const ServerTimes& s : models) {
    out.push_back(base::Json::object({{"model", s.model},
                                      {"requests", s.requests},
                                      {"inferences", s.inferences},
                                      {"batches", s.batches},
                                      {"queue_ns", s.mean_of(s.queue_ns)},
                                      {"compute_input_ns", s.mean_of(s.compute_input_ns)},
                                      {"compute_infer_ns", s.mean_of(s.compute_infer_ns)},
                                      {"compute_output_ns", s.mean_of(s.compute_output_ns)}}));
  }
  return out;
}

base::Json effort_json(const Effort& e) {
  return base::Json::object({{"busy_share", e.busy_share},
                             {"waited_share", e.waited_share},
                             {"late_p50_ns", e.late.quantile(0.5)},
                             {"late_p99_ns", e.late.quantile(0.99)},
                             {"starved", e.starved}});
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
  if (r.first_part.count() > 0) run.set("stream", stream_json(r));
  if (!m.server.empty()) run.set("server", server_json(m.server));
  run.set("generator", effort_json(r.effort));
  base::Json warnings = base::Json::array();
  for (const std::string& warning : warnings_of(m)) warnings.push_back(warning);
  run.set("warnings", warnings);
  if (r.is_interrupted) run.set("interrupted", true);
  return run;
}

}  // namespace

std::vector<std::string> warnings_of(const Measured& m) {
  const LoadResult& r = m.result;
  const Effort& e = r.effort;
  constexpr double kBusy = 0.9, kWaited = 0.1, kStarved = 0.01;
  std::vector<std::string> out;
  if (r.is_interrupted) out.push_back("interrupted: these are the figures until then");
  if (r.succeeded == 0) out.push_back("no request succeeded");
  if (e.busy_share > kBusy) {
    out.push_back("the generator may be the limit: its busiest thread worked " +
                  format_number(e.busy_share * 100, 0) +
                  " % of the time; more --threads, or another machine");
  }
  if (e.waited_share > kWaited) {
    out.push_back(
        "the generator waited for a processor " + format_number(e.waited_share * 100, 0) +
        " % of the time: latencies are too long by that; fewer programs beside it, or another machine");
  }
  const auto late = static_cast<double>(e.late.quantile(0.99));
  if (late > 1e6 && late > 0.1 * static_cast<double>(r.latency.quantile(0.99)) && e.busy_share <= kBusy)
    out.push_back("requests left late, p99 " + format_ms(late) + " ms after they were due");
  const auto starved = static_cast<double>(e.starved);
  if (starved > kStarved * static_cast<double>(r.scheduled)) {
    out.push_back(format_number(100 * starved / static_cast<double>(std::max<int64_t>(1, r.scheduled)), 1) +
                  " % of the requests found every connection in use and waited for one: the server does not "
                  "keep up, or --connections is too small");
  }
  if (r.succeeded > 0 && !kept_up(r)) {
    out.push_back("the server did not keep up with " + format_number(r.offered_rate, 1) +
                  " requests a second, or the run is too short for answers that take " +
                  format_ms(r.latency.mean()) + " ms: a longer run would tell, or show longer latencies");
  }
  return out;
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
    for (const std::string& warning : warnings_of(m))
      out +=
          "warning: " + (report.runs.size() > 1 ? label_of(m.result) + ": " : std::string()) + warning + "\n";
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
  if (report.found_concurrency >= 0)
    out += "highest concurrency that met every goal: " + format_number(report.found_concurrency, 0) + "\n";
  return out;
}

base::Json json_report(const Report& report) {
  base::Json out;
  out.set("title", report.title);
  out.set("url", report.url);
  out.set("what", report.what);
  out.set("items_per_request", report.items_per_request);
  out.set("options", report.options);
  out.set("started", report.started);
  if (report.found_rate >= 0) out.set("found_rate", report.found_rate);
  if (report.found_concurrency >= 0) out.set("found_concurrency", report.found_concurrency);
  if (report.failure) out.set("failure", report.failure->message());
  base::Json runs = base::Json::array();
  for (const Measured& m : report.runs) runs.push_back(run_json(m));
  out.set("runs", runs);
  return out;
}

}  // namespace trireme::load
