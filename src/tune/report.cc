// What a search found: text, JSON and Markdown.
#include "tune/report.h"

#include <cmath>

#include "base/machine/cpu_info.h"
#include "base/report/svg_plot.h"
#include "tune/report_units.h"

namespace trireme::tune {
namespace {

using base::format_number;

std::string number(double x) { return format_number(x, x < 10 ? 2 : 1); }
std::string money(double x) { return std::isfinite(x) ? format_number(x, x < 1 ? 4 : 2) : "-"; }

/// Predicted over measured, less 1, in percent.
std::string error(double predicted, double measured) {
  if (!(measured > 0) || !std::isfinite(measured)) return "-";
  const double percent = 100 * (predicted / measured - 1);
  return (percent >= 0 ? "+" : "") + format_number(percent, 0) + " %";
}

/// Of the 99th percentile; one of a queue that was predicted to grow without end has no meaning.
std::string error_of(const Compared& c) {
  const bool is_past = c.measured.rate > 0 && c.predicted.throughput < 0.97 * c.measured.rate;
  return is_past ? "predicted to fall behind" : error(c.predicted.p99_ns, c.measured.p99_ns);
}

std::string latency_goals(const TuneResult& r) {
  std::string text;
  for (const LatencyGoal& g : r.wish.goals)
    text += base::concat(text.empty() ? "" : ", ", "p", std::lround(g.quantile * 100), " within ",
                         to_string(base::Duration{g.bound_ns}));
  if (text.empty()) text = "no latency goal";
  if (r.wish.rate > 0) text += base::concat(", at ", r.wish.rate, " requests a second");
  if (r.wish.clients > 0) text += base::concat(", with ", r.wish.clients, " clients");
  if (r.wish.memory_bytes > 0) text += ", memory at most " + to_string(base::ByteSize{r.wish.memory_bytes});
  return text + (r.wish.objective == Objective::cost ? "; least cost" : "; most requests a second");
}

std::string cost_unit(const TuneOptions& o) {
  return o.price.empty() ? "core-hours per million requests" : "cost per million requests";
}

base::Json prediction_json(const Prediction& p, const Subject& subject) {
  const Candidate& c = p.candidate;
  return base::Json::object(
      {{"variant", subject.variants[c.variant].name},
       {"instances", c.layout.instances},
       {"threads", c.layout.threads},
       {"max_batch", c.max_batch},
       {"buckets", base::JsonArray(c.row_buckets.begin(), c.row_buckets.end())},
       {"window_us", c.window_ns / base::kNsPerUs},
       {"window", c.keeps_window ? "kept" : "adaptive"},
       {"whole_batches", c.runs_whole},
       {"feasible", p.is_feasible},
       {"rate", p.rate},
       {"throughput", p.throughput},
       {"saturation", p.saturation},
       {"p50_ms", p.p50_ns * 1e-6},
       {"p95_ms", p.p95_ns * 1e-6},
       {"p99_ms", p.p99_ns * 1e-6},
       {"mean_batch", p.mean_batch},
       {"busy", p.busy},
       {"memory_bytes", p.memory_bytes},
       {"cost_per_million",
        std::isfinite(p.cost_per_million) ? base::Json(p.cost_per_million) : base::Json()}});
}

base::Json trial_json(const Trial& t, const Subject& subject) {
  base::Json runs = base::Json::array();
  for (const Compared& c : t.runs) {
    runs.push_back(base::Json::object(
        {{"measured", c.measured.to_json()}, {"predicted", prediction_json(c.predicted, subject)}}));
  }
  return base::Json::object({{"predicted", prediction_json(t.predicted, subject)},
                             {"runs", std::move(runs)},
                             {"best", t.best},
                             {"failure", t.failure}});
}

std::string result_verdict(const TuneResult& r) {
  if (r.is_reached) return r.trials.empty() ? "Goal reached (predicted, not measured)." : "Goal reached.";
  return "Goal not reached; below is the nearest.";
}

void add_choice(const TuneResult& r, const TuneOptions& o, std::string& out) {
  const Prediction& p = r.chosen;
  out += "**" + words_of(p.candidate, r.subject) + "**\n\n";
  out += base::concat(number(p.throughput), " requests a second, p50 ", ms(p.p50_ns), " ms, p95 ",
                      ms(p.p95_ns), " ms, p99 ", ms(p.p99_ns), " ms, ", mib(p.memory_bytes), " MiB, ",
                      money(p.cost_per_million), " ", cost_unit(o),
                      r.is_chosen_measured ? " (measured)" : " (predicted)", ".\n\n");
  out += "```\n" + serve_line(o) + "\n```\n\n";
}

void add_variants(const TuneResult& r, std::string& out) {
  out += "## Variants\n\n| variant | error against f32 | |\n|---|---|---|\n";
  for (const Variant& v : r.subject.variants) {
    out +=
        base::concat("| ", v.name, " | ", v.error, " | ", v.refusal.empty() ? "competes" : v.refusal, " |\n");
  }
  out += "\n";
}

void add_trials(const TuneResult& r, std::string& out) {
  if (r.trials.empty()) return;
  out +=
      "## Prediction beside measurement\n\nEach load on a real server over a socket, until three windows "
      "agreed; beside it what the simulation said of the very same load before. After each load the batch "
      "times of its variant and layout are what the server's own statistics say, so that a first line "
      "shows the error from the costs alone and the lines after it what is left of it.\n\n"
      "| configuration | load | answers/s | predicted | p50 ms | predicted | p99 ms | predicted | error of "
      "p99 | goal |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Trial& t : r.trials) {
    for (const Compared& c : t.runs) {
      const Measurement& m = c.measured;
      out += base::concat("| ", words_of(t.predicted.candidate, r.subject), " | ",
                          m.clients > 0 ? base::concat(m.clients, " clients") : number(m.rate) + "/s", " | ",
                          number(m.throughput), " | ", number(c.predicted.throughput), " | ", ms(m.p50_ns),
                          " | ", ms(c.predicted.p50_ns), " | ", ms(m.p99_ns), " | ", ms(c.predicted.p99_ns),
                          " | ", error_of(c), " | ",
                          !m.keeps_up             ? "fell behind"
                          : m.meets(r.wish.goals) ? "met"
                                                  : "missed",
                          m.is_stable ? "" : ", not stable", " |\n");
    }
    if (!t.failure.empty())
      out += "\n" + words_of(t.predicted.candidate, r.subject) + ": " + t.failure + "\n";
  }
  out +=
      base::concat("\nThe front end adds ", number(r.front.overhead_ns * 1e-3), " us to a request and takes ",
                   number(r.front.cpu_ns * 1e-3), " us of processor time, generator included.\n\n");
}

void add_predictions(const TuneResult& r, std::string& out) {
  constexpr size_t kShown = 15;
  out += base::concat(
      "## Predictions\n\nThe first ", std::min(kShown, r.predictions.size()), " of ", r.predictions.size(),
      " configurations.\n\n| configuration | requests/s | saturation | p50 ms | p99 ms | mean batch "
      "| MiB | cost |\n|---|---|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < r.predictions.size() && i < kShown; ++i) {
    const Prediction& p = r.predictions[i];
    out += base::concat("| ", words_of(p.candidate, r.subject), p.is_feasible ? "" : " (misses the goal)",
                        " | ", number(p.throughput), " | ", number(p.saturation), " | ", ms(p.p50_ns), " | ",
                        ms(p.p99_ns), " | ", number(p.mean_batch), " | ", mib(p.memory_bytes), " | ",
                        money(p.cost_per_million), " |\n");
  }
}

}  // namespace

std::string words_of(const Candidate& c, const Subject& subject) {
  std::string text = base::concat(subject.variants[c.variant].name, ", ", c.layout.instances, " x ",
                                  c.layout.threads, c.layout.threads == 1 ? " thread" : " threads");
  if (c.max_batch == 0) return text;
  text += base::concat(", batches to ", c.max_batch);
  if (c.max_batch > 1) {
    text += " (";
    for (size_t i = 0; i < c.row_buckets.size(); ++i)
      text += (i > 0 ? "," : "") + std::to_string(c.row_buckets[i]);
    text += ")";
  }
  return text + ", window " + to_string(base::Duration{c.window_ns}) + (c.keeps_window ? " kept" : "") +
         (c.runs_whole ? ", whole batches" : "");
}

std::string serve_line(const TuneOptions& options) {
  return "trireme serve --model-repository " + options.out + "/repository";
}

std::string text_report(const TuneResult& r, const TuneOptions& o) {
  const Prediction& p = r.chosen;
  std::string out = base::concat("goal: ", latency_goals(r), "\n", result_verdict(r), "\n");
  out +=
      base::concat(words_of(p.candidate, r.subject), ": ", number(p.throughput), " requests a second, p99 ",
                   ms(p.p99_ns), " ms, ", mib(p.memory_bytes), " MiB, ", money(p.cost_per_million), " ",
                   cost_unit(o), r.is_chosen_measured ? " (measured)\n" : " (predicted)\n");
  for (const Trial& t : r.trials) {
    for (const Compared& c : t.runs) {
      out += base::concat("  ", words_of(t.predicted.candidate, r.subject), ": ",
                          c.measured.clients > 0 ? base::concat(c.measured.clients, " clients")
                                                 : number(c.measured.rate) + "/s",
                          ": ", number(c.measured.throughput), "/s, p99 ", ms(c.measured.p99_ns),
                          " ms; predicted ", number(c.predicted.throughput), "/s, ", ms(c.predicted.p99_ns),
                          " ms (", error_of(c), ")\n");
    }
    if (!t.failure.empty())
      out += "  " + words_of(t.predicted.candidate, r.subject) + ": " + t.failure + "\n";
  }
  for (const Variant& v : r.subject.variants) {
    if (!v.refusal.empty()) out += "  left out: " + v.name + ": " + v.refusal + "\n";
  }
  out += base::concat(r.predictions.size(), " configurations, ", r.resumed, " measurements resumed, ",
                      number(r.seconds), " s; ", o.out, "/report.html\n", serve_line(o), "\n");
  return out;
}

base::Json json_report(const TuneResult& r, const TuneOptions& o) {
  base::Json predictions = base::Json::array(), trials = base::Json::array(), variants = base::Json::array();
  for (const Prediction& p : r.predictions) predictions.push_back(prediction_json(p, r.subject));
  for (const Trial& t : r.trials) trials.push_back(trial_json(t, r.subject));
  for (const Variant& v : r.subject.variants) {
    variants.push_back(
        base::Json::object({{"name", v.name},
                            {"error", std::isfinite(v.error) ? base::Json(v.error) : base::Json()},
                            {"refusal", v.refusal}}));
  }
  base::Json curves = base::Json::array();
  for (const auto& curve : r.curves) {
    base::Json& list = curves.push_back(base::Json::array());
    for (const Prediction& p : curve) list.push_back(prediction_json(p, r.subject));
  }
  TuneOptions copy = o;
  base::OptionList list(copy);
  return base::Json::object({{"model", r.subject.name},
                             {"goal", latency_goals(r)},
                             {"reached", r.is_reached},
                             {"chosen", prediction_json(r.chosen, r.subject)},
                             {"measured", r.is_chosen_measured},
                             {"serve", serve_line(o)},
                             {"front_end", base::Json::object({{"overhead_us", r.front.overhead_ns * 1e-3},
                                                               {"cpu_us", r.front.cpu_ns * 1e-3}})},
                             {"variants", std::move(variants)},
                             {"trials", std::move(trials)},
                             {"curves", std::move(curves)},
                             {"predictions", std::move(predictions)},
                             {"machine", base::read_cpu_info().to_json()},
                             {"key", r.subject.key},
                             {"resumed", static_cast<int64_t>(r.resumed)},
                             {"seconds", r.seconds},
                             {"options", list.to_json()}});
}

std::string markdown_report(const TuneResult& r, const TuneOptions& o) {
  std::string out =
      base::concat("# ", r.subject.name, "\n\nGoal: ", latency_goals(r), ". ", result_verdict(r), "\n\n");
  add_choice(r, o, out);
  add_trials(r, out);
  add_variants(r, out);
  add_predictions(r, out);
  const base::CpuInfo cpu = base::read_cpu_info();
  out += base::concat("\nMeasured on ", cpu.model, ", ", cpu.threads(), " threads; ", r.resumed,
                      " measurements of an earlier run were used; ", number(r.seconds), " s.\n");
  return out;
}

}  // namespace trireme::tune
