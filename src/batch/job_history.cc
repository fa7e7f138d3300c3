// The journal read once, from its first record to its last.
#include "batch/job_history.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "batch/state/journal.h"

namespace trireme::batch {
namespace {

constexpr int64_t kForetellingShare = 20;  // one in so many chunks, the first ones
constexpr double kLimiting = 0.85;         // of the time: the stage that others wait for

double share(int64_t part_ns, const Effort& e) {
  return e.elapsed_ns == 0 ? 0 : static_cast<double>(part_ns) / static_cast<double>(e.elapsed_ns);
}

/// Mean and variance of weighted values that come one by one. Source: West 1979.
struct Moments {
  int64_t count = 0;
  double weight = 0, mean = 0, squares = 0;
  void add(double value, double its_weight) {
    ++count;
    weight += its_weight;
    const double delta = value - mean;
    mean += delta * its_weight / weight;
    squares += its_weight * delta * (value - mean);
  }
  double deviation() const {
    const auto n = static_cast<double>(count);
    return count < 2 ? 0 : std::sqrt(squares / weight * n / (n - 1));
  }
};

}  // namespace

double Foretold::seconds_per_row() const {
  return rows == 0 ? 0 : static_cast<double>(elapsed_ns) / 1e9 / static_cast<double>(rows);
}

double WorkerPast::rows_per_s() const {
  return effort.elapsed_ns == 0
             ? 0
             : static_cast<double>(rows + errors) * 1e9 / static_cast<double>(effort.elapsed_ns);
}

double JobPast::worker_seconds() const {
  double sum = 0;
  for (const auto& [id, w] : workers) sum += w.seconds();
  return sum;
}

JobPast read_past(const JobDirectory& directory, const Manifest& manifest) {
  JobPast past;
  past.chunks = static_cast<int64_t>(manifest.chunks.size());
  past.rows = manifest.rows();
  Moments moments;
  read_journal(directory.journal(), manifest.job, [&](const Record& r) {
    WorkerPast& w = past.workers[r.worker];
    if (w.begin_ns == 0) w.begin_ns = r.wall_ns;
    w.last_ns = std::max(w.last_ns, r.wall_ns);
    past.last_ns = std::max(past.last_ns, r.wall_ns);
    if (r.kind == RecordKind::worker) w.process = r.text;
    if (r.kind == RecordKind::ended) w.ended = r.text;
    past.given_back += r.kind == RecordKind::given_back;
    if (r.kind != RecordKind::done) return;
    const int64_t rows = r.result.rows + r.result.errors;
    ++w.chunks, ++past.chunks_done;
    w.rows += r.result.rows, w.errors += r.result.errors;
    past.rows_done += rows, past.errors += r.result.errors;
    past.bytes += r.result.bytes + r.result.error_bytes;
    w.effort.add(r.effort), past.effort.add(r.effort);
    if (past.chunks_done <= std::max<int64_t>(1, past.chunks / kForetellingShare)) {
      ++past.foretold.chunks;
      past.foretold.rows += rows;
      past.foretold.elapsed_ns += r.effort.elapsed_ns;
    }
    const auto weight = static_cast<double>(rows);
    if (rows > 0) moments.add(static_cast<double>(r.effort.elapsed_ns) / 1e9 / weight, weight);
  });
  past.seconds_per_row = moments.mean;
  past.spread = moments.mean > 0 ? moments.deviation() / moments.mean : 0;
  return past;
}

std::vector<Stage> stages_of(const Effort& e) {
  std::vector<Stage> stages;
  const auto add = [&](std::string_view name, int64_t ns) { stages.push_back({name, ns, share(ns, e)}); };
  add("reading rows", e.read_ns);
  add("the model computes, by instance", e.busy_ns / std::max<int64_t>(1, e.instances));
  add("the reader waits for the model to take more", e.blocked_ns);
  add("the writer waits for answers", e.waiting_ns);
  add("writing rows", e.write_ns);
  add("committing chunks", e.commit_ns);
  return stages;
}

double busy_share(const Effort& e) {
  return share(e.busy_ns, e) / static_cast<double>(std::max<int64_t>(1, e.instances));
}

Bottleneck bottleneck_of(const Effort& e) {
  if (e.elapsed_ns == 0) return Bottleneck::unknown;
  const double reading = share(e.read_ns, e), writing = share(e.write_ns + e.commit_ns, e);
  if (busy_share(e) >= kLimiting) return Bottleneck::model;
  if (std::max(reading, writing) >= kLimiting)
    return reading > writing ? Bottleneck::reading : Bottleneck::writing;
  return share(e.blocked_ns, e) + share(e.waiting_ns, e) >= kLimiting ? Bottleneck::front
                                                                      : Bottleneck::unknown;
}

std::string_view name_of(Bottleneck bottleneck) {
  switch (bottleneck) {
    case Bottleneck::unknown: return "none stands out";
    case Bottleneck::model: return "the model";
    case Bottleneck::reading: return "reading the input";
    case Bottleneck::writing: return "writing the output";
    case Bottleneck::front: return "preparing rows for the model";
  }
  return "";
}

std::string advice_for(Bottleneck bottleneck, const Effort& e) {
  const double padding =
      e.elements == 0 ? 0 : static_cast<double>(e.padded) / static_cast<double>(e.elements);
  constexpr double kMuchPadding = 0.2;
  switch (bottleneck) {
    case Bottleneck::model:
      if (padding > kMuchPadding) {
        return base::concat("A larger window_rows would bring rows of like length together: ",
                            std::lround(100 * padding), " % of what the model computes is padding.");
      }
      return "More workers, a lower precision (precision: bf16, weights: int8) or a faster device would "
             "help.";
    case Bottleneck::reading:
      return "A store that is nearer, or a format that is read faster (Parquet, Arrow) would help; so would "
             "more "
             "workers.";
    case Bottleneck::writing:
      return "A lighter output_compression, larger chunk_rows, or a faster disk would help.";
    case Bottleneck::front:
      return "More front_threads would help: rows wait for tokens or decoded pictures, while the model has "
             "time left.";
    case Bottleneck::unknown: break;
  }
  return "More instances may help: no stage is busy all the time.";
}

}  // namespace trireme::batch
