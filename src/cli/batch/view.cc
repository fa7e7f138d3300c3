// Shows the progress of a batch job in the terminal, in the log and to metrics scrapers.
#include "cli/batch/view.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/files/file.h"
#include "base/report/svg_plot.h"
#include "batch/job_plan.h"
#include "batch/status.h"

namespace trireme::cli {
namespace {

constexpr int64_t kLogNs = 10 * base::kNsPerSecond;
constexpr int64_t kShowNs = base::kNsPerSecond;
constexpr int64_t kGoalNs = base::kNsPerSecond;   // between two checks of the goals
constexpr int64_t kLeaveNs = base::kNsPerSecond;  // from the request to stop to the worker's last record

std::string bytes_text(int64_t bytes) {
  constexpr double kMega = 1e6, kGiga = 1e9;
  const auto value = static_cast<double>(bytes);
  return value < kGiga ? base::format_number(value / kMega, 1) + " MB"
                       : base::format_number(value / kGiga, 2) + " GB";
}

}  // namespace

BatchView::BatchView(const BatchViewOptions& view, const batch::JobOptions& options, base::Env& env)
    : view_(view), options_(options), env_(env), is_terminal_(::isatty(STDERR_FILENO) == 1) {
  if (view.metrics_port > 0) port_ = std::make_unique<JobPort>(view.metrics_port, options, env);
}

BatchView::~BatchView() { finish(); }

void BatchView::finish() {
  if (std::exchange(has_line_, false)) std::fputc('\n', stderr);
}

void BatchView::show(const batch::Progress& p) {
  if (port_ != nullptr) port_->set(p);
  look_at_goals();
  if (!view_.quiet) write_line(p);
}

void BatchView::show_status() {
  const int64_t now = env_.clock.now_ns();
  if (last_show_ns_ != 0 && now - last_show_ns_ < kShowNs) return;
  last_show_ns_ = now;
  if (!base::file_exists(batch::directory_of(options_, 0).manifest())) return;
  const batch::JobStatus s = batch::status_of(options_, env_.clock);
  show({.chunks = s.past.chunks,
        .chunks_done = s.past.chunks_done,
        .rows = s.past.rows,
        .rows_done = s.past.rows_done,
        .errors = s.past.errors,
        .bytes = s.past.bytes,
        .rows_per_s = s.rows_per_s,
        .job_rows_per_s = s.rows_per_s,
        .busy = batch::busy_share(s.past.effort),
        .left_s = s.left_s});
}

void BatchView::write_line(const batch::Progress& p) {
  const double share = p.rows == 0 ? 1 : static_cast<double>(p.rows_done) / static_cast<double>(p.rows);
  const std::string end = p.left_s < 0 ? "?" : batch::duration_text(p.left_s);
  const std::string rate = base::format_number(p.rows_per_s, 1), busy = base::format_number(100 * p.busy, 0);
  if (is_terminal_) {
    has_line_ = true;
    std::fprintf(stderr, "\r\033[K%5.1f %%  %lld rows  %s rows/s  model %s %%  %s  %lld failed  end in %s",
                 100 * share, static_cast<long long>(p.rows_done), rate.c_str(), busy.c_str(),
                 bytes_text(p.bytes).c_str(), static_cast<long long>(p.errors), end.c_str());
    std::fflush(stderr);
    return;
  }
  const int64_t now = env_.clock.now_ns();
  if (last_log_ns_ != 0 && now - last_log_ns_ < kLogNs) return;
  last_log_ns_ = now;
  env_.log.info("batch", "progress",
                {{"chunks", base::concat(p.chunks_done, "/", p.chunks)},
                 {"rows", base::concat(p.rows_done, "/", p.rows)},
                 {"failed", p.errors},
                 {"rows_per_s", rate},
                 {"busy", busy + "%"},
                 {"bytes", p.bytes},
                 {"end_in", end}});
}

/// Stopping costs money too, so the budget keeps back what these take: the time until the next check, the
/// pieces that every worker is still computing, and leaving.
bool BatchView::is_spent(const batch::JobStatus& status) const {
  const bool is_done = status.past.chunks_done == status.past.chunks;  // and costs nothing more
  if (options_.budget == 0 || is_done) return false;
  const double kept_s = static_cast<double>(kGoalNs + options_.grace.ns + kLeaveNs) / 1e9;
  const auto workers = static_cast<double>(std::max<size_t>(1, status.working.size()));
  return status.cost + workers * kept_s / 3600 * options_.cost_per_hour >= options_.budget;
}

bool BatchView::was_budget_spent() {
  const bool is_begun = base::file_exists(batch::directory_of(options_, 0).manifest());
  if (options_.budget > 0 && is_begun) is_budget_spent_ = is_spent(batch::status_of(options_, env_.clock));
  return is_budget_spent_;
}

void BatchView::look_at_goals() {
  if (options_.budget == 0 && options_.deadline.ns == 0) return;
  const int64_t now = env_.clock.now_ns();
  if (last_goal_ns_ != 0 && now - last_goal_ns_ < kGoalNs) return;
  last_goal_ns_ = now;
  const batch::JobStatus status = batch::status_of(options_, env_.clock);
  if (is_spent(status)) is_budget_spent_ = true;
  if (view_.quiet || status.past.chunks_done == 0 || std::exchange(has_told_goals_, true)) return;
  for (const std::string& goal : status.goals) env_.log.info("batch", "goal", {{"says", goal}});
}

}  // namespace trireme::cli
