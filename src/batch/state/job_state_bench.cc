// What a job of 500 million rows costs beside its model: manifest and journal alone, through all their
// chunks.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>

#include "base/machine/memory.h"
#include "batch/state/journal.h"
#include "batch/state/manifest.h"

namespace trireme::batch {
namespace {

/// Argument: rows of a chunk. Every chunk is leased and committed in transactions of their own; then a worker
/// that starts again reads it all.
void job_of_500_million_rows(benchmark::State& state) {
  constexpr int64_t kRows = 500'000'000, kRowBytes = 100;
  const int64_t chunk_rows = state.range(0);
  const std::string directory =
      (std::filesystem::temp_directory_path() / ("job_state_" + std::to_string(::getpid()))).string();
  for (auto _ : state) {
    std::filesystem::remove_all(directory);
    std::filesystem::create_directories(directory);
    base::reset_peak_resident();
    Manifest manifest;
    manifest.job = 1;
    manifest.identity = manifest.result = manifest.options = base::Json::object();
    manifest.files = {{.path = "input.jsonl", .content_id = 1}};
    for (int64_t row = 0; row < kRows; row += chunk_rows) {
      manifest.chunks.push_back({.file = 0,
                                 .span = {.first_row = row,
                                          .rows = std::min(chunk_rows, kRows - row),
                                          .begin = row * kRowBytes,
                                          .end = std::min(row + chunk_rows, kRows) * kRowBytes,
                                          .crc = 1}});
    }
    write_manifest(directory + "/manifest", manifest);
    const auto chunks = static_cast<int64_t>(read_manifest(directory + "/manifest").chunks.size());
    {
      Journal journal(directory + "/journal", manifest.job, chunks);
      for (int64_t i = 0; i < chunks; ++i) {
        int64_t chunk = -1;
        journal.transact([&](Transaction& t) {
          chunk = t.table().next_open();
          t.add({.kind = RecordKind::lease, .worker = 1, .token = static_cast<uint64_t>(i), .chunk = chunk});
        });
        journal.transact([&](Transaction& t) {
          t.add({.kind = RecordKind::done,
                 .worker = 1,
                 .token = static_cast<uint64_t>(i),
                 .chunk = chunk,
                 .result = {.rows = chunk_rows}});
        });
      }
    }
    const Journal again(directory + "/journal", manifest.job, chunks);
    again.look([&](const ChunkTable& t) {
      if (!t.all_done()) state.SkipWithError("chunks were lost");
    });
    state.counters["chunks"] = static_cast<double>(chunks);
    state.counters["peak_MB"] = static_cast<double>(base::peak_resident_bytes()) / 1e6;
    state.counters["journal_MB"] =
        static_cast<double>(std::filesystem::file_size(directory + "/journal")) / 1e6;
    state.counters["manifest_MB"] =
        static_cast<double>(std::filesystem::file_size(directory + "/manifest")) / 1e6;
  }
  std::filesystem::remove_all(directory);
}
BENCHMARK(job_of_500_million_rows)->Arg(16384)->Arg(4096)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace trireme::batch
