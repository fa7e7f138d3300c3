// Recounting and rehashing the output of a job.
#include "batch/verify.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "base/crc32c.h"
#include "base/error.h"
#include "batch/job_plan.h"
#include "batch/state/chunk_table.h"
#include "batch/state/journal.h"
#include "batch/state/manifest.h"
#include "data/rows/row_file.h"
#include "data/store/store.h"

namespace trireme::batch {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;

uint32_t crc_of(const data::StoreFile& file) {
  std::vector<std::byte> piece;
  uint32_t crc = 0;
  for (int64_t at = 0; at < file.size(); at += kPieceBytes) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, file.size() - at)));
    file.read(at, piece);
    crc = base::crc32c(std::span<const std::byte>(piece), crc);
  }
  return crc;
}

class Verification {
 public:
  Verification(const JobOptions& options, const Manifest& manifest)
      : manifest_(manifest),
        directory_(directory_of(options, static_cast<int64_t>(manifest.chunks.size()))),
        store_(data::store_of(directory_.at(""))),
        format_(options.output_format == "openai" ? "jsonl" : options.output_format) {}

  Verified run() {
    out_.chunks = directory_.chunks;
    ChunkTable table(directory_.chunks);
    read_journal(directory_.journal(), manifest_.job, [&](const Record& r) {
      const int64_t before = table.done();
      table.apply(r);
      if (table.done() > before) check_chunk(r.chunk, r.result);
    });
    out_.chunks_done = table.done();
    look_for_others(directory_.at(""), directory_.ending, table);
    look_for_others(directory_.errors(), ".jsonl", table);
    return std::move(out_);
  }

 private:
  void find(std::string finding) {
    if (out_.findings.size() < Verified::kMostFindings) {
      out_.findings.push_back(std::move(finding));
    } else {
      ++out_.left_out;
    }
  }

  /// Whether the file has these bytes.
  bool check_file(const std::string& path, int64_t bytes, uint32_t crc) {
    try {
      const std::shared_ptr<const data::StoreFile> file = store_->open(path);
      if (file->size() != bytes) {
        find(base::concat("'", path, "' has ", file->size(), " bytes; ", bytes, " were written"));
      } else if (crc_of(*file) != crc) {
        find(base::concat("'", path, "' has other bytes than were written"));
      } else {
        return true;
      }
    } catch (const base::Error& e) {
      find(e.message());
    }
    return false;
  }

  void check_rows(const std::string& path, const std::string& format, int64_t rows) {
    if (rows == 0) return;  // not every format can say what columns no rows have
    constexpr int64_t kAll = int64_t{1} << 40;
    try {
      int64_t found = 0;
      data::open_row_file(store_, path, {.format = format})->cut(kAll, [&](const data::RowSpan& span) {
        found += span.rows;
      });
      if (found != rows) find(base::concat("'", path, "' holds ", found, " rows; ", rows, " were written"));
    } catch (const base::Error& e) {
      find(e.message());
    }
  }

  void check_chunk(int64_t chunk, const ChunkResult& r) {
    const Chunk& planned = manifest_.chunks[static_cast<size_t>(chunk)];
    out_.rows += r.rows, out_.errors += r.errors, out_.bytes += r.bytes + r.error_bytes;
    if (r.rows + r.errors != planned.span.rows) {
      find(base::concat("chunk ", chunk, " has ", r.rows, " rows and ", r.errors,
                        " failed ones; the input has ", planned.span.rows));
    }
    if (check_file(directory_.part(chunk), r.bytes, r.crc))
      check_rows(directory_.part(chunk), format_, r.rows);
    if (r.errors == 0) return;
    if (check_file(directory_.error_part(chunk), r.error_bytes, r.error_crc)) {
      check_rows(directory_.error_part(chunk), "jsonl", r.errors);
    }
  }

  /// Parts that no record knows.
  void look_for_others(const std::string& directory, const std::string& ending, const ChunkTable& table) {
    if (!store_->exists(directory)) return;
    for (const data::StoreEntry& entry : store_->list(directory)) {
      const std::string name = directory_.name_of(entry.path);
      if (entry.is_directory || !name.starts_with("part-")) continue;
      const int64_t chunk = directory_.chunk_of(name, ending);
      if (chunk < 0) {
        find(base::concat("'", directory, "/", name, "' is no part of this job"));
      } else if (!table.is_done(chunk)) {
        find(base::concat("'", directory, "/", name, "' is there, and chunk ", chunk, " is not done"));
      }
    }
  }

  const Manifest& manifest_;
  JobDirectory directory_;
  std::shared_ptr<const data::Store> store_;
  std::string format_;
  Verified out_;
};

}  // namespace

Verified verify_job(const JobOptions& options) {
  const Manifest manifest = read_manifest(directory_of(options, 0).manifest());
  return Verification(options, manifest).run();
}

}  // namespace trireme::batch
