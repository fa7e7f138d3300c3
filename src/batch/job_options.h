// Everything a batch job can be told: keys of the job file, and flags of the command line over them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/text/options.h"
#include "batch/model_options.h"
#include "data/rows/row_file.h"
#include "data/rows/row_writer.h"

namespace trireme::batch {

struct JobOptions {
  ModelOptions model;

  std::vector<std::string> input_files;  ///< files, directories, patterns and URLs
  std::string input_format;              ///< empty: by each file's name
  std::vector<std::string> input_keep;   ///< columns that are carried into the output
  bool input_partitions = true;          ///< directories named key=value give columns
  bool input_csv_header = true;
  std::string input_csv_delimiter = ",";
  base::ByteSize input_most_row_bytes{int64_t{64} << 20};

  std::string output_directory;
  std::string output_format = "parquet";
  std::string output_compression;
  std::vector<std::string> output_columns;  ///< "output=name": outputs under other names
  int64_t chunk_rows = 16384;

  std::string state;  ///< directory of manifest and journal; empty: _job in the output's

  int retries = 3;  ///< of a row whose error may pass
  base::Duration retry_wait{200 * base::kNsPerMs};
  int64_t max_errors = -1;                            ///< rows; negative: any number
  base::Duration patience{300 * base::kNsPerSecond};  ///< with a full disk or a lost store
  base::Duration lease{60 * base::kNsPerSecond};
  base::Duration grace{20 * base::kNsPerSecond};
  std::string preempt_notice;

  int workers = 1;           ///< processes of this machine; with a deadline at most so many
  double cost_per_hour = 0;  ///< of a worker
  double budget = 0;         ///< 0: none
  base::Duration deadline;   ///< since the job's start; 0: none
  std::string trace;

  void fields(base::OptionList& f);
  /// What follows from other options: lines of the OpenAI API are answered by lines of it, told by their
  /// custom_id.
  void complete();
  /// Throws invalid_argument for what lacks or contradicts itself; called before anything is opened.
  void check() const;

  /// `partitions`: the job's columns that directories name.
  data::RowFileOptions row_file_options(std::vector<data::Field> partitions = {}) const;
  /// The columns that the directories of the input's files name, unless they are not asked for.
  std::vector<data::Field> partitions_of(const std::vector<std::string>& paths) const;
  /// "output=name" as pairs.
  std::vector<std::pair<std::string, std::string>> renamed_outputs() const;
  /// The directory of manifest, journal and workers.
  std::string state_directory() const;
  /// The options on which the bytes of the output depend beside the model's: compared at every start.
  base::Json result() const;
};

/// Sets options by a job file in YAML: mappings inside mappings are joined by '_', so that `input: {files:
/// x}` is the key input_files. Throws invalid_argument with `source` and the line.
void read_job(std::string_view yaml, const std::string& source, JobOptions& options);

}  // namespace trireme::batch
