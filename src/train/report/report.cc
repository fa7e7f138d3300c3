// Writes the report: a table of totals, the evaluations, the time spent by kind, and four plots.
#include "train/report/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "base/files/file.h"
#include "base/report/svg_plot.h"
#include "base/text/yaml.h"

namespace trireme::train {
namespace {

using base::format_number;
using base::Plot;
using base::PlotSeries;

using Figure = double StepRecord::*;

PlotSeries series(const LoggedRun& run, const std::string& name, Figure figure) {
  PlotSeries s{name, {}};
  for (const StepRecord& r : run.steps) s.points.emplace_back(static_cast<double>(r.step), r.*figure);
  return s;
}

Plot loss_plot(const LoggedRun& run) {
  Plot plot{"Loss", "step", "mean loss", {series(run, "train", &StepRecord::loss)}, false, false, {}};
  PlotSeries held{"validation", {}};
  for (const EvalRecord& e : run.evals) held.points.emplace_back(static_cast<double>(e.step), e.loss);
  if (!held.points.empty()) plot.series.push_back(std::move(held));
  return plot;
}

Plot lr_plot(const LoggedRun& run) {
  return {"Learning rate", "step", "rate", {series(run, "lr", &StepRecord::lr)}, false, false, {}};
}

Plot rate_plot(const LoggedRun& run) {
  return {"Rate", "step", "samples a second", {series(run, "rate", &StepRecord::samples_per_s)}, false,
          false,  {}};
}

Plot time_plot(const LoggedRun& run) {
  return {"Step time",
          "step",
          "ms",
          {series(run, "data", &StepRecord::data_wait_ms), series(run, "forward", &StepRecord::forward_ms),
           series(run, "backward", &StepRecord::backward_ms), series(run, "update", &StepRecord::update_ms)},
          false,
          false,
          {}};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_of(const LoggedRun& run, Figure figure) {
  std::vector<double> values;
  for (const StepRecord& r : run.steps) values.push_back(r.*figure);
  return median(std::move(values));
}

std::string row(const std::string& name, const std::string& value) {
  return "| " + name + " | " + value + " |\n";
}

std::string percent(double share) { return format_number(share * 100, 2) + " %"; }

std::string totals(const LoggedRun& run) {
  const StepRecord& last = run.steps.back();
  const auto skipped =
      std::count_if(run.steps.begin(), run.steps.end(), [](const StepRecord& r) { return r.skipped; });
  std::string text = "| | |\n|---|---|\n";
  text += row("steps", base::concat(last.step, ", ", skipped, " skipped"));
  text += row("samples", base::concat(last.samples, " (", format_number(last.epoch, 2), " epochs)"));
  text += row("last training loss", format_number(last.loss, 5));
  if (!run.evals.empty()) {
    const auto best = std::min_element(run.evals.begin(), run.evals.end(),
                                       [](const auto& a, const auto& b) { return a.loss < b.loss; });
    text += row("best validation loss", base::concat(format_number(best->loss, 5), " at step ", best->step));
    if (best->accuracy >= 0) {
      double top = 0;
      for (const EvalRecord& e : run.evals) top = std::max(top, e.accuracy);
      text += row("best validation accuracy", percent(top));
    }
  }
  text += row("rate, median", format_number(median_of(run, &StepRecord::samples_per_s), 1) + " samples/s");
  if (last.mfu >= 0) {
    text += row("MFU, median", percent(median_of(run, &StepRecord::mfu)));
    text += row("MFU is", run.start.is_object() ? run.start.get_or("mfu_definition", "") : "");
  }
  if (run.end.is_object()) {
    text += row("ended", run.end.get_or("reason", ""));
    for (const LostWork& lost : run.restarts) {
      text += row("restart", base::concat(lost.steps, " steps lost, ", short_time(lost.seconds), ", down ",
                                          short_time(lost.down_seconds)));
    }
    text += row("wall time of the last process", short_time(run.end.get_or("seconds", 0.0)));
    if (const int64_t peak = run.end.get_or<int64_t>("peak_bytes", 0); peak > 0)
      text += row("peak memory", mebibytes(peak));
  }
  return text;
}

std::string time_table(const LoggedRun& run) {
  const double whole = median_of(run, &StepRecord::step_ms);
  std::string text = "| part of a step | median ms | share |\n|---|---:|---:|\n";
  const auto part = [&](const char* name, double ms) {
    text += base::concat("| ", name, " | ", format_number(ms, 3), " | ", whole > 0 ? percent(ms / whole) : "",
                         " |\n");
  };
  part("waiting for data", median_of(run, &StepRecord::data_wait_ms));
  part("forward", median_of(run, &StepRecord::forward_ms));
  part("backward", median_of(run, &StepRecord::backward_ms));
  part("update", median_of(run, &StepRecord::update_ms));
  part("whole step", whole);
  return text;
}

std::string eval_table(const LoggedRun& run) {
  if (run.evals.empty()) return "";
  // For long runs, only every k-th, but always the last.
  const size_t stride = (run.evals.size() + 39) / 40;
  std::string text =
      "\n## Validation\n\n| step | loss | accuracy | targets | seconds |\n|---:|---:|---:|---:|---:|\n";
  for (size_t i = 0; i < run.evals.size(); ++i) {
    const EvalRecord& e = run.evals[i];
    if (i % stride != 0 && i + 1 != run.evals.size()) continue;
    text += base::concat("| ", e.step, " | ", format_number(e.loss, 5), " | ",
                         e.accuracy >= 0 ? percent(e.accuracy) : "", " | ", e.targets, " | ",
                         format_number(e.seconds, 2), " |\n");
  }
  return text;
}

/// A section with plain text; nothing for an empty text.
std::string block(const std::string& title, const std::string& text) {
  if (text.empty()) return "";
  return "\n## " + title + "\n\n```\n" + text + (text.back() == '\n' ? "" : "\n") + "```\n";
}

}  // namespace

std::string report_text(const LoggedRun& run) {
  const std::string name = run.start.is_object() ? run.start.get_or("name", "run") : "run";
  std::string text = "# Training report: " + name + "\n\n";
  if (run.steps.empty()) return text + "No step was logged.\n";
  text += totals(run) + "\n![loss](plots/loss.svg)\n" + eval_table(run);
  text += "\n## Where the time went\n\n" + time_table(run) + "\n![step time](plots/step_time.svg)\n";
  text += "\n![rate](plots/rate.svg)\n\n## Learning rate\n\n![learning rate](plots/lr.svg)\n";
  if (!run.start.is_object()) return text;
  text += block("Optimizer", run.start.get_or("optimizer", ""));
  text += block("Precision", run.start.get_or("precision", ""));
  if (const base::Json* config = run.start.find("config")) {
    text += "\n## Configuration\n\n```yaml\n" + base::to_yaml(*config) + "```\n";
  }
  return text;
}

void write_report(const std::string& directory) {
  const LoggedRun run = read_log(directory + "/log.jsonl");
  const std::string plots = directory + "/plots";
  std::filesystem::create_directories(plots);
  base::write_file_atomic(plots + "/loss.svg", base::svg_document(loss_plot(run)));
  base::write_file_atomic(plots + "/lr.svg", base::svg_document(lr_plot(run)));
  base::write_file_atomic(plots + "/rate.svg", base::svg_document(rate_plot(run)));
  base::write_file_atomic(plots + "/step_time.svg", base::svg_document(time_plot(run)));
  base::write_file_atomic(directory + "/report.md", report_text(run));
}

}  // namespace trireme::train
