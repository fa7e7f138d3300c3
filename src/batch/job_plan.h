// The plan of a job: its input cut into chunks when it first starts, and compared with at every later start.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "batch/job_options.h"
#include "batch/row_model.h"
#include "batch/state/job_directory.h"
#include "batch/state/manifest.h"

namespace trireme::batch {

/// The files that the options name, in the order of their rows. Throws not_found, and invalid_argument where
/// the output lies among them.
std::vector<std::string> input_paths(const JobOptions& options);

/// "a, b"
std::string field_names(const std::vector<data::Field>& fields);

/// Throws invalid_argument where a column lacks that the model reads or that is to be kept.
void check_columns(const std::vector<data::Field>& fields, const RowModel& model,
                   const std::vector<std::string>& keep);

/// The columns of a job's input.
struct InputColumns {
  std::vector<data::Field> fields;
  std::string path = {};  ///< of the file that has them
  bool has_rows = false;  ///< of a file that has; an empty file of lines names no columns
};

/// Those of the first of these files that has rows; without one, those of the last file. Reads no more of a
/// file than its first rows and its index.
InputColumns input_columns(const JobOptions& options, const std::vector<std::string>& paths);

/// What is asked while a long input is cut: throws to stop.
using AskStop = std::function<void()>;

/// Opens every file, looks at its columns and cuts it: formats without an index are read whole, several files
/// at a time. Throws invalid_argument for a file with rows that lacks a column.
Manifest plan_job(const JobOptions& options, const RowModel& model, const std::vector<std::string>& paths,
                  const AskStop& ask_stop);

/// Throw invalid_argument, naming what differs, where the job in the directory was begun with other options,
/// another model, or with other input.
void check_same_options(const Manifest& manifest, const JobOptions& options);
void check_same_model(const Manifest& manifest, const base::Json& identity);
void check_same_input(const Manifest& manifest, const JobOptions& options,
                      const std::vector<std::string>& paths);

/// Where the files of a job with so many chunks lie.
JobDirectory directory_of(const JobOptions& options, int64_t chunks);

/// A directory without "file://" and slashes at its end.
std::string plain_directory(std::string path);

}  // namespace trireme::batch
