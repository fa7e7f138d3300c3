// Status: sums of the journal, the seats that are held, and what follows from both.
#include "batch/status.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/report/svg_plot.h"
#include "batch/job_plan.h"
#include "batch/state/journal.h"
#include "batch/state/worker_seat.h"
#include "batch/state/worker_watch.h"

namespace trireme::batch {
namespace {

constexpr double kMinute = 60, kHour = 3600;

/// Chunks that each worker has in hand.
std::map<uint64_t, int64_t> held_chunks(const JobDirectory& directory, const Manifest& manifest) {
  ChunkTable table(static_cast<int64_t>(manifest.chunks.size()));
  read_journal(directory.journal(), manifest.job, [&](const Record& r) { table.apply(r); });
  std::map<uint64_t, int64_t> held;
  for (const auto& [chunk, lease] : table.leases()) ++held[lease.worker];
  return held;
}

/// The rest of the job takes rows x seconds a row / workers. Its relative error, 1.96 standard deviations
/// wide: the chunks to come differ, and the mean of those that were is not exact. Where chunks to come have
/// more rows than those that were, or fewer, they may cost by the chunk as well as by the row.
void expect_end(JobStatus& s) {
  const JobPast& p = s.past;
  if (p.chunks_done == p.chunks) {
    s.left_s = s.least_left_s = s.most_left_s = 0;
    return;
  }
  if (s.rows_per_s <= 0) return;
  constexpr double kWidth = 1.96;
  const auto done = static_cast<double>(p.chunks_done), left = static_cast<double>(p.chunks - p.chunks_done);
  const double error = kWidth * p.spread * std::sqrt(1 / left + 1 / done);
  const auto rows_left = static_cast<double>(p.rows - p.rows_done);
  const double rows_of_done = static_cast<double>(p.rows_done) / done, rows_of_next = rows_left / left;
  const double by_chunk = rows_of_next > 0 ? rows_of_done / rows_of_next : 1;  // relative to the time by rows
  s.left_s = rows_left / s.rows_per_s;
  s.least_left_s = s.left_s * std::min(1.0, by_chunk) * std::max(0.0, 1 - error);
  s.most_left_s = s.left_s * std::max(1.0, by_chunk) * (1 + error);
}

std::string advice_for_more(int64_t workers) {
  return base::concat("More: sbatch --array=0-", workers - 1,
                      " deploy/batch.sbatch JOB, or completions and parallelism ", workers,
                      " in deploy/kubernetes-batch.yaml.");
}

std::string percent(int64_t part, int64_t whole) {
  return base::format_number(
      whole == 0 ? 100 : 100.0 * static_cast<double>(part) / static_cast<double>(whole), 1);
}

}  // namespace

std::string duration_text(double seconds) {
  char text[64];
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (seconds < 10) {
    std::snprintf(text, sizeof text, "%.1f s", seconds);
  } else if (seconds < 2 * kMinute) {
    std::snprintf(text, sizeof text, "%lld s", static_cast<long long>(whole));
  } else if (seconds < 2 * kHour) {
    std::snprintf(text, sizeof text, "%lld min %lld s", static_cast<long long>(whole / 60),
                  static_cast<long long>(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%lld h %lld min", static_cast<long long>(whole / 3600),
                  static_cast<long long>(whole / 60 % 60));
  }
  return text;
}

JobStatus status_of(const JobOptions& options, const base::Clock& clock) {
  const Manifest manifest = read_manifest(directory_of(options, 0).manifest());
  const JobDirectory directory = directory_of(options, static_cast<int64_t>(manifest.chunks.size()));
  JobStatus s;
  s.past = read_past(directory, manifest);
  s.since_start_s = static_cast<double>(clock.wall_ns() - manifest.wall_ns) / 1e9;
  std::map<uint64_t, int64_t> held = held_chunks(directory, manifest);
  double unrecorded_s = 0;  // of those who work, since their last records
  for (const uint64_t id : workers_in(directory.workers())) {
    const auto past = s.past.workers.find(id);
    if (past == s.past.workers.end() || is_dead(directory.workers(), id)) continue;
    const WorkerPast& w = past->second;
    unrecorded_s += std::max(0.0, static_cast<double>(clock.wall_ns() - w.last_ns) / 1e9);
    s.working.push_back({id, w.process, w.rows_per_s(), w.chunks, held[id]});
    // One that has just begun will be as fast as the others.
    const double others = s.past.seconds_per_row > 0 ? 1 / s.past.seconds_per_row : 0;
    s.rows_per_s += w.chunks > 0 ? w.rows_per_s() : others;
  }
  expect_end(s);
  s.cost = (s.past.worker_seconds() + unrecorded_s) / kHour * options.cost_per_hour;
  const double left_rows = static_cast<double>(s.past.rows - s.past.rows_done);
  s.cost_at_end = s.cost + left_rows * s.past.seconds_per_row / kHour * options.cost_per_hour;
  s.goals = goals_of(options, s);
  return s;
}

int64_t workers_for_deadline(const JobOptions& options, const JobStatus& s) {
  const double work_s = static_cast<double>(s.past.rows - s.past.rows_done) * s.past.seconds_per_row;
  const double until_s = static_cast<double>(options.deadline.ns) / 1e9 - s.since_start_s;
  if (options.deadline.ns == 0 || s.past.seconds_per_row == 0) return 0;
  if (until_s <= 0) return s.past.chunks - s.past.chunks_done;
  return static_cast<int64_t>(std::ceil(std::min(work_s / until_s, 1e9)));
}

std::vector<std::string> goals_of(const JobOptions& options, const JobStatus& s) {
  std::vector<std::string> out;
  const JobPast& p = s.past;
  const double work_s = static_cast<double>(p.rows - p.rows_done) * p.seconds_per_row;  // of one worker
  if (p.rows == p.rows_done || (options.budget == 0 && options.deadline.ns == 0)) return out;
  if (p.seconds_per_row == 0) {
    out.emplace_back("Goals are judged once the first chunk is done.");
    return out;
  }
  const double until_s = static_cast<double>(options.deadline.ns) / 1e9 - s.since_start_s;
  if (options.deadline.ns > 0 && until_s <= 0) {
    out.push_back(base::concat("The deadline has passed ", duration_text(-until_s), " ago; one worker needs ",
                               duration_text(work_s), " more."));
  } else if (options.deadline.ns > 0) {
    const int64_t workers = workers_for_deadline(options, s);
    const int64_t chunks_left = p.chunks - p.chunks_done;
    const auto at_work = static_cast<int64_t>(s.working.size());
    if (workers > chunks_left) {
      out.push_back(base::concat("The deadline cannot be met: ", workers,
                                 " workers would be needed, and there are ", chunks_left,
                                 " chunks left to share; smaller chunk_rows would be shared further."));
    } else {
      out.push_back(base::concat("The deadline, in ", duration_text(until_s), ", needs ", workers,
                                 workers == 1 ? " worker" : " workers", "; ", at_work,
                                 at_work == 1 ? " works" : " work", ".",
                                 workers > at_work ? " " + advice_for_more(workers - at_work) : ""));
    }
  }
  if (options.budget > 0) {
    const double over = s.cost_at_end - options.budget;
    out.push_back(base::concat(over > 0 ? "The budget cannot be met: the job will cost "
                                        : "The budget is enough: the job will cost ",
                               base::format_number(s.cost_at_end, 2), " of ",
                               base::format_number(options.budget, 2),
                               over > 0 ? "; more workers end it earlier, not cheaper." : "."));
  }
  return out;
}

std::string JobStatus::text() const {
  std::string out;
  const auto line = [&](const auto&... parts) { out += base::concat(parts...) + "\n"; };
  line("chunks   ", past.chunks_done, " of ", past.chunks, " (", percent(past.chunks_done, past.chunks),
       " %)");
  line("rows     ", past.rows_done, " of ", past.rows, ", ", past.errors, " failed, ", past.bytes,
       " bytes written");
  line("workers  ", working.size(), " at work, ", past.workers.size(), " ever; ",
       base::format_number(rows_per_s, 1), " rows/s together");
  for (const WorkerNow& w : working) {
    line("  ", w.process, "  ", base::format_number(w.rows_per_s, 1), " rows/s, ", w.chunks_done,
         " chunks done, ", w.chunks_held, " in hand");
  }
  if (past.chunks_done == past.chunks) {
    line("end      done");
  } else if (left_s < 0) {
    line("end      not known: ", working.empty() ? "nobody works on it" : "no chunk is done yet");
  } else {
    line("end      in ", duration_text(left_s), " (", duration_text(least_left_s), " to ",
         duration_text(most_left_s), ")");
  }
  if (cost > 0) {
    line("cost     ", base::format_number(cost, 2), " so far, ", base::format_number(cost_at_end, 2),
         " at the end");
  }
  if (past.chunks_done > 0) {
    const Bottleneck b = bottleneck_of(past.effort);
    line("slowest  ", name_of(b), " (the model is busy ",
         base::format_number(100 * busy_share(past.effort), 1), " %). ", advice_for(b, past.effort));
  }
  for (const std::string& goal : goals) line("goal     ", goal);
  return out;
}

base::Json JobStatus::json() const {
  base::Json out = base::Json::object({{"chunks", past.chunks},
                                       {"chunks_done", past.chunks_done},
                                       {"rows", past.rows},
                                       {"rows_done", past.rows_done},
                                       {"errors", past.errors},
                                       {"bytes", past.bytes},
                                       {"given_back", past.given_back},
                                       {"rows_per_s", rows_per_s},
                                       {"busy", busy_share(past.effort)},
                                       {"slowest", name_of(bottleneck_of(past.effort))},
                                       {"advice", advice_for(bottleneck_of(past.effort), past.effort)}});
  base::Json stages = base::Json::array();
  for (const Stage& stage : stages_of(past.effort)) {
    stages.push_back(base::Json::object({{"name", stage.name}, {"share", stage.share}}));
  }
  out.set("stages", std::move(stages));
  const auto known = [](double value) { return value < 0 ? base::Json() : base::Json(value); };
  out.set("left_s", known(left_s));
  out.set("least_left_s", known(least_left_s));
  out.set("most_left_s", known(most_left_s));
  out.set("cost", cost);
  out.set("cost_at_end", cost_at_end);
  base::Json list = base::Json::array();
  for (const WorkerNow& w : working) {
    list.push_back(base::Json::object({{"process", w.process},
                                       {"rows_per_s", w.rows_per_s},
                                       {"chunks_done", w.chunks_done},
                                       {"chunks_held", w.chunks_held}}));
  }
  out.set("workers", std::move(list));
  out.set("goals", base::Json(base::JsonArray(goals.begin(), goals.end())));
  return out;
}

}  // namespace trireme::batch
