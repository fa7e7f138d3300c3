// Runs the model of a batch job on rows in memory, for bench/batch.py: `bench_batch JOB.yaml ROWS`. Reads
// ROWS rows of the job's input, opens its model, and prints in one JSON line how many rows there are; then
// answers each line "milliseconds" of standard input with a JSON line: rows per second over whole rounds of
// all rows, and the share of the time in which the model computed.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/text/json.h"
#include "batch/job_options.h"
#include "batch/models/open_row_model.h"
#include "data/rows/row_file.h"
#include "model/load/load.h"

namespace {

using namespace trireme;
using Clock = std::chrono::steady_clock;

/// Reads the first rows of the job's files, in pieces.
std::vector<std::shared_ptr<const data::Rows>> read_rows(const batch::JobOptions& options,
                                                         batch::RowModel& model, int64_t wanted) {
  std::vector<std::shared_ptr<const data::Rows>> pieces;
  for (const std::string& path : data::expand_paths(options.input_files)) {
    const auto file = data::open_row_file(data::store_of(path), path, options.row_file_options());
    std::vector<data::RowSpan> spans;
    file->cut(options.chunk_rows, [&](const data::RowSpan& span) { spans.push_back(span); });
    for (const data::RowSpan& span : spans) {
      const auto stream = file->open(span, model.columns());
      for (data::Rows rows; wanted > 0 && stream->next(std::min(wanted, model.piece_rows()), rows);
           rows = {}) {
        wanted -= rows.count;
        pieces.push_back(std::make_shared<const data::Rows>(std::move(rows)));
      }
    }
  }
  return pieces;
}

/// Runs all pieces once and returns when the last one is answered. Throws if a row failed.
int64_t round(batch::RowModel& model, const std::vector<std::shared_ptr<const data::Rows>>& pieces) {
  std::mutex mutex;
  std::condition_variable changed;
  size_t left = pieces.size();
  int64_t rows = 0, failed = 0;
  for (const auto& piece : pieces) {
    model.submit(piece, [&](batch::PieceAnswer&& answer) {
      const std::lock_guard lock(mutex);
      rows += answer.outputs.count;
      for (const auto& error : answer.errors) failed += error.has_value() ? 1 : 0;
      if (--left == 0) changed.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return left == 0; });
  base::require(failed == 0, failed, " of ", rows, " rows failed");
  return rows;
}

int run(const std::string& path, int64_t wanted) {
  batch::JobOptions options;
  batch::read_job(base::read_file(path), path, options);
  const base::SystemClock clock;
  const auto model = batch::open_row_model(
      options.model, [](const std::string& name) { return model::load_model(name); }, clock);
  const auto pieces = read_rows(options, *model, wanted);
  int64_t rows = 0;
  for (const auto& piece : pieces) rows += piece->count;
  std::cout << base::Json::object({{"rows", rows}}).dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const auto begin = Clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    const int64_t busy = model->use().busy_ns;
    int64_t done = 0;
    while (seconds() * 1e3 < std::stod(line)) done += round(*model, pieces);
    const double elapsed = seconds();
    const double used = static_cast<double>(model->use().busy_ns - busy) * 1e-9 / model->use().instances;
    std::cout << base::Json::object(
                     {{"rows_per_s", static_cast<double>(done) / elapsed}, {"busy", used / elapsed}})
                     .dump()
              << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    base::require(argc == 3, "usage: bench_batch JOB.yaml ROWS");
    return run(argv[1], std::stoll(argv[2]));
  } catch (const std::exception& e) {
    std::cerr << "bench_batch: " << e.what() << "\n";
    return 1;
  }
}
