// Looking at a job's output again: every file is read, its checksum and its rows are held against the
// journal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "batch/job_options.h"

namespace trireme::batch {

struct Verified {
  int64_t chunks = 0, chunks_done = 0, rows = 0, errors = 0, bytes = 0;
  /// What differs, a sentence each; at most kMostFindings are kept.
  std::vector<std::string> findings;
  int64_t left_out = 0;
  static constexpr size_t kMostFindings = 100;

  bool is_whole() const { return findings.empty() && chunks == chunks_done; }
};

/// Reads every output of a job. Of each chunk: it is done, its files have the bytes and the checksums that
/// were journaled, its rows and its failed rows add up to those of the input. No other part lies in the
/// directory.
Verified verify_job(const JobOptions& options);

}  // namespace trireme::batch
