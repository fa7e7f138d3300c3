// The page of a search: the choice, tables, and plots of the space, the Pareto front and predictions against
// measurements.
#include <algorithm>
#include <cmath>

#include "base/report/svg_plot.h"
#include "tune/report.h"

namespace trireme::tune {
namespace {

using base::html_escape;
using base::Plot;
using base::PlotSeries;

constexpr const char* kStyle = R"(<style>
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#60646c;--line:#d9d9e0;--c0:#0b68cb;--c1:#c4540a;
--c2:#18794e;--c3:#7c3aad;--c4:#b3261e;--c5:#0c7a8a;--c6:#8a6d00;--c7:#5b5f66}
@media(prefers-color-scheme:dark){:root{--bg:#111113;--fg:#edeef0;--dim:#b0b4ba;--line:#3a3f42;--c0:#70b8ff;
--c1:#ffa057;--c2:#5fd0a0;--c3:#d19dff;--c4:#ff9592;--c5:#4ccce6;--c6:#f5e147;--c7:#b0b4ba}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;
max-width:1000px;margin:2rem auto;padding:0 1rem}h1{font-size:1.3rem}h2{font-size:1.1rem}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.25rem .5rem;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}pre{overflow:auto}
svg{width:100%;max-width:820px;display:block;margin:1.2rem 0}
.grid{stroke:var(--line)}.axis{stroke:var(--dim)}
.label{fill:var(--dim);font-size:11px}.title{fill:var(--fg);font-size:14px;font-weight:600}
polyline{fill:none}.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}
.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}
polyline,line[class^=s]{stroke-width:2}.dot{fill:var(--bg);stroke-width:2}
</style>)";

/// Lines of Markdown that reports use: headings, tables, fences, bold; everything else is a paragraph.
std::string html_of(const std::string& markdown) {
  std::string out, text;
  bool in_table = false, in_fence = false;
  const auto inline_text = [](const std::string& line) {
    std::string escaped = html_escape(line), result;
    bool is_open = false;
    for (size_t at = 0; at < escaped.size(); ++at) {
      if (escaped.compare(at, 2, "**") == 0) {
        result += is_open ? "</b>" : "<b>";
        is_open = !is_open;
        ++at;
      } else {
        result += escaped[at];
      }
    }
    return result;
  };
  for (size_t at = 0; at < markdown.size();) {
    const size_t end = std::min(markdown.find('\n', at), markdown.size());
    const std::string line = markdown.substr(at, end - at);
    at = end + 1;
    if (line.rfind("```", 0) == 0) {
      out += in_fence ? "</pre>" : "<pre>";
      in_fence = !in_fence;
      continue;
    }
    if (in_fence) {
      out += html_escape(line) + "\n";
      continue;
    }
    const bool is_row = !line.empty() && line[0] == '|';
    if (in_table && !is_row) out += "</table>";
    if (is_row && line.rfind("|---", 0) != 0) {
      const char* cell = in_table ? "td" : "th";
      if (!in_table) out += "<table>";
      out += "<tr>";
      for (size_t from = 1; from < line.size();) {
        const size_t bar = std::min(line.find('|', from), line.size());
        out += base::concat("<", cell, ">", inline_text(line.substr(from, bar - from)), "</", cell, ">");
        from = bar + 1;
      }
      out += "</tr>\n";
    } else if (!is_row && line.rfind("# ", 0) == 0) {
      out += "<h1>" + inline_text(line.substr(2)) + "</h1>";
    } else if (!is_row && line.rfind("## ", 0) == 0) {
      out += "<h2>" + inline_text(line.substr(3)) + "</h2>";
    } else if (!is_row && !line.empty()) {
      out += "<p>" + inline_text(line) + "</p>\n";
    }
    in_table = is_row;
  }
  return in_table ? out + "</table>" : out;
}

std::vector<std::pair<double, double>> points_of(const std::vector<Prediction>& list) {
  std::vector<std::pair<double, double>> points;
  for (const Prediction& p : list) points.emplace_back(p.throughput, p.p99_ns * 1e-6);
  return points;
}

/// p99 against throughput: the choice from light load to saturation, the front of all that were followed so,
/// and what was measured.
Plot space_plot(const TuneResult& r) {
  Plot plot{"Latency against throughput", "answers a second", "p99, ms", {}, true, true, {}};
  std::vector<Prediction> all;
  for (const auto& curve : r.curves) all.insert(all.end(), curve.begin(), curve.end());
  plot.series.push_back({"Pareto front, predicted", points_of(pareto_front(all))});
  if (!r.curves.empty()) plot.series.push_back({"the choice, predicted", points_of(r.curves[0])});
  // A line for each configuration; one that joined them would mean nothing.
  constexpr size_t kColours = 8;
  for (size_t i = 0; i < r.trials.size() && plot.series.size() < kColours; ++i) {
    PlotSeries measured{base::concat("measured, no. ", i + 1), {}};
    for (const Compared& c : r.trials[i].runs) {
      if (c.measured.p99_ns < 1e15)
        measured.points.emplace_back(c.measured.throughput, c.measured.p99_ns * 1e-6);
    }
    std::sort(measured.points.begin(), measured.points.end());
    if (!measured.points.empty()) plot.series.push_back(std::move(measured));
  }
  return plot;
}

/// The best variant's cost of a row by batch size, a line for each layout.
Plot cost_plot(const TuneResult& r) {
  Plot plot{
      "Rows a second of all instances by batch", "rows of a batch", "rows a second", {}, true, true, {}};
  std::vector<Layout> seen;
  for (const Prediction& p : r.predictions) {
    const Candidate& c = p.candidate;
    if (c.variant != r.chosen.candidate.variant || plot.series.size() >= 8) continue;
    if (std::find(seen.begin(), seen.end(), c.layout) != seen.end()) continue;
    seen.push_back(c.layout);
    PlotSeries& s = plot.series.emplace_back();
    s.name = base::concat(c.layout.instances, " x ", c.layout.threads);
    for (int64_t rows = 1; rows <= r.costs.most_rows(c.variant, c.layout); rows *= 2) {
      const double ns = r.costs.usual_ns(c.variant, c.layout, 0, rows, c.layout.instances);
      s.points.emplace_back(static_cast<double>(rows),
                            c.layout.instances * static_cast<double>(rows) * 1e9 / ns);
    }
  }
  return plot;
}

Plot agreement_plot(const TuneResult& r) {
  Plot plot{"Predicted against measured p99", "measured p99, ms", "predicted p99, ms", {}, false, true, {}};
  PlotSeries points{"trials", {}};
  double most = 0;
  for (const Trial& t : r.trials) {
    for (const Compared& c : t.runs) {
      if (c.measured.p99_ns > 1e15) continue;
      points.points.emplace_back(c.measured.p99_ns * 1e-6, c.predicted.p99_ns * 1e-6);
      most = std::max({most, points.points.back().first, points.points.back().second});
    }
  }
  std::sort(points.points.begin(), points.points.end());
  plot.series = {{"equal", {{0, 0}, {most, most}}}, std::move(points)};
  return plot;
}

}  // namespace

std::string html_report(const TuneResult& r, const TuneOptions& o) {
  std::string out = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>" +
                    html_escape("trireme tune: " + r.subject.name) +
                    "</title><meta name=\"viewport\" content=\"width=device-width\">" + kStyle +
                    "</head><body>";
  out += html_of(markdown_report(r, o));
  out += base::svg_of(space_plot(r));
  if (r.subject.is_batched()) out += base::svg_of(cost_plot(r));
  if (!r.trials.empty()) out += base::svg_of(agreement_plot(r));
  return out + "</body></html>\n";
}

}  // namespace trireme::tune
