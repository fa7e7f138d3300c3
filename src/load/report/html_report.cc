// The load test's page: table, goals, and plots of latency percentiles, latency over time and throughput over
// time.
#include <cmath>

#include "load/report/report.h"

namespace trireme::load {

using base::html_escape;
using base::Plot;
using base::PlotSeries;
using base::svg_of;

namespace {

constexpr const char* kStyle = R"(<style>
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#60646c;--line:#d9d9e0;
--bad:#c62a2f;--good:#18794e;--c0:#0b68cb;--c1:#c4540a;--c2:#18794e;--c3:#7c3aad;
--c4:#b3261e;--c5:#0c7a8a;--c6:#8a6d00;--c7:#5b5f66}
@media(prefers-color-scheme:dark){:root{--bg:#111113;--fg:#edeef0;--dim:#b0b4ba;--line:#3a3f42;
--bad:#ff9592;--good:#5fd0a0;--c0:#70b8ff;--c1:#ffa057;--c2:#5fd0a0;--c3:#d19dff;
--c4:#ff9592;--c5:#4ccce6;--c6:#f5e147;--c7:#b0b4ba}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;
max-width:1000px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.3rem}p.what{color:var(--dim)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}
svg{width:100%;max-width:820px;display:block;margin:1.2rem 0}
.grid{stroke:var(--line)}.axis{stroke:var(--dim)}
.label{fill:var(--dim);font-size:11px}.title{fill:var(--fg);font-size:14px;font-weight:600}
polyline{fill:none}.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}
.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}
polyline,line[class^=s]{stroke-width:2}.dot{fill:var(--bg);stroke-width:2}
.bad{color:var(--bad)}.good{color:var(--good)}
</style>)";

void cell(std::string& out, const std::string& text) { out += "<td>" + html_escape(text) + "</td>"; }

std::string table_of(const Report& report) {
  std::string out =
      "<table><thead><tr><th>load</th><th>requests/s</th><th>95 % interval</th><th>p50 ms</th><th>p95 ms</th>"
      "<th>p99 ms</th><th>p99.9 ms</th><th>max ms</th><th>succeeded</th><th>failed</th></tr></thead><tbody>";
  for (const Measured& m : report.runs) {
    const LoadResult& r = m.result;
    const Bounds b = throughput_bounds(r);
    out += "<tr>";
    cell(out, label_of(r));
    cell(out, format_number(r.throughput(), 1));
    cell(out, format_number(b.low, 1) + " - " + format_number(b.high, 1));
    for (const double q : {0.5, 0.95, 0.99, 0.999, 1.0})
      cell(out, format_ms(static_cast<double>(r.latency.quantile(q))));
    cell(out, std::to_string(r.succeeded));
    std::string failed = std::to_string(r.error_count());
    for (const auto& [name, count] : r.errors) failed += "; " + name + " " + std::to_string(count);
    cell(out, failed);
    out += "</tr>";
  }
  return out + "</tbody></table>";
}

std::string goals_of(const Report& report) {
  std::string out;
  for (const Measured& m : report.runs) {
    for (const SloOutcome& o : m.slos) {
      out += std::string("<li class=\"") + (o.met ? "good" : "bad") + "\">" +
             html_escape(label_of(m.result) + " " + to_string(o)) + "</li>";
    }
  }
  if (report.found_rate >= 0) {
    out +=
        "<li>highest rate that met every goal: " + format_number(report.found_rate, 1) + " requests/s</li>";
  }
  if (report.found_concurrency >= 0) {
    out += "<li>highest concurrency that met every goal: " + format_number(report.found_concurrency, 0) +
           "</li>";
  }
  for (const Measured& m : report.runs) {
    for (const std::string& warning : warnings_of(m))
      out += "<li class=\"bad\">" + html_escape(label_of(m.result) + ": " + warning) + "</li>";
  }
  if (report.failure) out += "<li class=\"bad\">" + html_escape(report.failure->message()) + "</li>";
  return out.empty() ? out : "<ul>" + out + "</ul>";
}

// x = log10(1 / (1 - q)): each decade of rareness gets the same width, so that the tail is not squeezed into
// a line.
Plot percentile_plot(const Report& report) {
  Plot plot{"Latency by percentile", "percentile of requests", "latency, ms", {}, true, false, {}};
  plot.x_ticks = {{0, "0"},    {std::log10(2), "50"}, {1, "90"},    {2, "99"},
                  {3, "99.9"}, {4, "99.99"},          {5, "99.999"}};
  for (const Measured& m : report.runs) {
    PlotSeries& s = plot.series.emplace_back();
    s.name = label_of(m.result);
    const auto n = static_cast<double>(m.result.latency.count());
    for (double x = 0; x <= std::log10(std::max(n, 2.0)); x += 0.02) {
      const auto ns = static_cast<double>(m.result.latency.quantile(1 - std::pow(10.0, -x)));
      s.points.emplace_back(x, ns / 1e6);
    }
  }
  return plot;
}

double middle_s(const LoadResult& r, size_t interval) {
  return (static_cast<double>(interval) + 0.5) * static_cast<double>(r.interval_ns) / 1e9;
}

Plot latency_plot(const Report& report) {
  Plot plot{"Latency over time", "scheduled time, s", "latency, ms", {}, true, false, {}};
  const bool single = report.runs.size() == 1;
  for (const Measured& m : report.runs) {
    // One run shows its spread; several are compared by their tail.
    for (const double q : single ? std::vector<double>{0.5, 0.95, 0.99} : std::vector<double>{0.99}) {
      PlotSeries& s = plot.series.emplace_back();
      const std::string name = "p" + format_number(q * 100, 0);
      s.name = single ? name : label_of(m.result) + " " + name;
      for (size_t i = 0; i < m.result.intervals.size(); ++i) {
        const base::Histogram& h = m.result.intervals[i].latency;
        if (h.count() > 0)
          s.points.emplace_back(middle_s(m.result, i), static_cast<double>(h.quantile(q)) / 1e6);
      }
    }
  }
  return plot;
}

Plot throughput_plot(const Report& report) {
  Plot plot{"Throughput over time", "time, s", "answers a second", {}, false, false, {}};
  for (const Measured& m : report.runs) {
    const double seconds = static_cast<double>(m.result.interval_ns) / 1e9;
    PlotSeries& s = plot.series.emplace_back();
    s.name = label_of(m.result);
    for (size_t i = 0; i < m.result.intervals.size(); ++i) {
      s.points.emplace_back(middle_s(m.result, i),
                            static_cast<double>(m.result.intervals[i].completed) / seconds);
    }
  }
  return plot;
}

Plot trade_plot(const Report& report) {
  Plot plot{"Latency against throughput", "answers a second", "latency, ms", {}, true, true, {}};
  for (const double q : {0.5, 0.99}) {
    PlotSeries& s = plot.series.emplace_back();
    s.name = "p" + format_number(q * 100, 0);
    for (const Measured& m : report.runs) {
      s.points.emplace_back(m.result.throughput(), static_cast<double>(m.result.latency.quantile(q)) / 1e6);
    }
  }
  return plot;
}

}  // namespace

std::string html_report(const Report& report) {
  const std::string title = html_escape(report.title);
  std::string out =
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>" + title +
      "</title><meta name=\"viewport\" content=\"width=device-width\">" + kStyle + "</head><body><h1>" +
      title + "</h1><p class=\"what\">" + html_escape(report.url + ": " + report.what) +
      ". Latency counts from the scheduled time; failed requests are not in the percentiles, but count "
      "as missed in the goals.</p>";
  out += table_of(report) + goals_of(report);
  if (report.runs.size() > 1) out += svg_of(trade_plot(report));
  out += svg_of(percentile_plot(report)) + svg_of(latency_plot(report)) + svg_of(throughput_plot(report));
  return out + "</body></html>\n";
}

}  // namespace trireme::load
