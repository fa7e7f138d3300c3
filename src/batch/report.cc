// The report's tables.
#include "batch/report.h"

#include <algorithm>

#include "base/error.h"
#include "base/report/svg_plot.h"
#include "batch/job_history.h"
#include "batch/job_plan.h"
#include "batch/status.h"

namespace trireme::batch {
namespace {

std::string share_text(int64_t part, int64_t whole) {
  if (whole == 0) return "–";
  return base::format_number(100.0 * static_cast<double>(part) / static_cast<double>(whole), 1) + " %";
}

std::string time_by_stage(const Effort& e) {
  std::string out = "| stage | time | share of the workers' time |\n|---|---:|---:|\n";
  for (const Stage& s : stages_of(e)) {
    out += base::concat("| ", s.name, " | ", duration_text(static_cast<double>(s.ns) / 1e9), " | ",
                        share_text(s.ns, e.elapsed_ns), " |\n");
  }
  return out + "\nStages run side by side: their shares do not add up to 100 %.\n";
}

/// What the first chunks foretold beside what came of it, and the goals with whether they were met.
std::string plan_and_measurement(const JobOptions& options, const Manifest& manifest, const JobPast& past) {
  const Foretold& f = past.foretold;
  const auto rows = static_cast<double>(past.rows_done);
  if (f.seconds_per_row() <= 0 || rows == 0) return "No rows, no plan.\n";
  const double foretold_s = f.seconds_per_row() * rows;
  const double measured_s = static_cast<double>(past.effort.elapsed_ns) / 1e9;
  const double price = options.cost_per_hour / 3600;
  std::string out = base::concat("| | foretold by the first ", f.chunks, f.chunks == 1 ? " chunk" : " chunks",
                                 " | measured | measured / foretold |\n|---|---:|---:|---:|\n");
  const auto row = [&](const char* what, const std::string& then, const std::string& now, double ratio) {
    out += base::concat("| ", what, " | ", then, " | ", now, " | ", base::format_number(ratio, 2), " |\n");
  };
  row("rate of a worker, rows/s", base::format_number(rows / foretold_s, 1),
      base::format_number(rows / measured_s, 1), foretold_s / measured_s);
  row("time of all workers", duration_text(foretold_s), duration_text(measured_s), measured_s / foretold_s);
  if (price > 0) {
    row("cost of that time", base::format_number(foretold_s * price, 4),
        base::format_number(measured_s * price, 4), measured_s / foretold_s);
  }
  const double took_s = static_cast<double>(past.last_ns - manifest.wall_ns) / 1e9;
  const auto goal = [&](const char* name, const std::string& wanted, const std::string& found, bool is_met) {
    out += base::concat("\n", name, ": ", wanted, "; ", found, ": ", is_met ? "met" : "missed", ".\n");
  };
  if (options.deadline.ns > 0) {
    const double wanted_s = static_cast<double>(options.deadline.ns) / 1e9;
    goal("Deadline", duration_text(wanted_s), "the job took " + duration_text(took_s), took_s <= wanted_s);
  }
  if (options.budget > 0) {
    const double cost = past.worker_seconds() * price;
    goal("Budget", base::format_number(options.budget, 4), "the job cost " + base::format_number(cost, 4),
         cost <= options.budget);
  }
  return out;
}

std::string table_of_workers(const JobPast& past) {
  std::string out =
      "| worker | chunks | rows | rows/s | model busy | ended |\n|---|---:|---:|---:|---:|---|\n";
  for (const auto& [id, w] : past.workers) {
    out += base::concat("| ", w.process, " | ", w.chunks, " | ", w.rows, " | ",
                        base::format_number(w.rows_per_s(), 1), " | ",
                        base::format_number(100 * busy_share(w.effort), 1), " % | ",
                        w.ended.empty() ? "without a word" : w.ended, " |\n");
  }
  return out;
}

}  // namespace

std::string report_of(const JobOptions& options, const Manifest& manifest, const JobDirectory& directory) {
  const JobPast past = read_past(directory, manifest);
  const Effort& e = past.effort;
  std::string out = "# Batch job\n\n";
  const auto line = [&](const auto&... parts) { out += base::concat(parts...) + "\n"; };
  const double seconds = past.worker_seconds();
  line("- model: ", options.model.model);
  line("- input: ", manifest.files.size(), " files, ", past.rows, " rows in ", past.chunks, " chunks");
  if (!manifest.partitions.empty())
    line("- columns that directories name: ", field_names(manifest.partitions));
  line("- output: ", directory.output, ", ", past.bytes, " bytes");
  line("- rows that failed: ", past.errors, past.errors > 0 ? ", see errors/" : "",
       "; asked for again: ", e.retried);
  if (past.has_no_answer()) line("- **no row was answered**: the errors tell what the rows have in common");
  line("- workers: ", past.workers.size(), "; together ", duration_text(seconds),
       "; chunks given back: ", past.given_back);
  if (past.seconds_per_row > 0) {
    line("- rate: ", base::format_number(1 / past.seconds_per_row, 1), " rows/s a worker");
  }
  if (e.tokens > 0) line("- tokens: ", e.tokens);
  if (e.elements > 0) line("- padding: ", share_text(e.padded, e.elements), " of what the model computed");
  if (options.cost_per_hour > 0 && past.rows_done > 0) {
    const double cost = seconds / 3600 * options.cost_per_hour;
    line("- cost: ", base::format_number(cost, 4),
         "; of a million rows: ", base::format_number(cost / static_cast<double>(past.rows_done) * 1e6, 4));
  }
  const Bottleneck slowest = bottleneck_of(e);
  line("\n## What limited it\n\n", "Slowest: ", name_of(slowest), "; the model was busy ",
       base::format_number(100 * busy_share(e), 1), " % of the time. ", advice_for(slowest, e));
  out += "\n## The plan and what came of it\n\n" + plan_and_measurement(options, manifest, past);
  out += "\n## Where the time went\n\n" + time_by_stage(e);
  out += "\n## Workers\n\n" + table_of_workers(past);
  out += "\n## The model, as its outputs depend on it\n\n```json\n" + manifest.identity.dump({.indent = 2}) +
         "\n```\n";
  return out;
}

}  // namespace trireme::batch
