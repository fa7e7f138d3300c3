// What tests of batch jobs share: input files, and runs in this process or one of their own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files/file.h"
#include "batch/run_job.h"
#include "batch/state/test_directory.h"
#include "batch/test_model.h"

namespace trireme::batch {

/// Lines {"id": "row 3", "x": 3} with x from `first` on.
inline void write_input(const std::string& path, int64_t first, int64_t rows) {
  std::string text;
  for (int64_t x = first; x < first + rows; ++x) {
    text += base::concat(R"({"id": "row )", x, R"(", "x": )", x, "}\n");
  }
  base::write_file_atomic(path, text);
}

/// Two files of 60 and 45 rows in chunks of 20, in `directory`.
inline JobOptions small_job(const std::string& directory) {
  write_input(directory + "/in0.jsonl", 0, 60);
  write_input(directory + "/in1.jsonl", 60, 45);
  JobOptions options;
  options.model.model = "arithmetic";
  options.input_files = {directory + "/in*.jsonl"};
  options.input_keep = {"id"};
  options.output_directory = directory + "/out";
  options.output_format = "jsonl";
  options.chunk_rows = 20;
  options.retry_wait.ns = base::kNsPerMs;
  options.grace.ns = 0;
  options.patience.ns = 0;
  return options;
}

/// Runs a worker of the job to its end.
inline WorkerEnd run(const JobOptions& options, ArithmeticModel::Options model = {}, WorkerHooks hooks = {}) {
  base::Log log(base::LogLevel::off);
  base::SystemClock clock;
  const OpenModel open = [&](const ModelOptions&, const std::vector<data::Field>&) {
    return std::make_unique<ArithmeticModel>(model);
  };
  return run_job(options, open, std::move(hooks), {log, clock});
}

/// Calls `body` in a process of its own; gives what waitpid() says.
inline int in_process(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(99);
    }
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

/// The files of an output by name, without the job's own state; DIR stands for where the job lies.
inline std::map<std::string, std::string> output_of(const std::string& directory) {
  std::map<std::string, std::string> files;
  const std::string place = std::filesystem::path(directory).parent_path().string();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const std::string name = std::filesystem::relative(entry.path(), directory).string();
    if (!entry.is_regular_file() || name.starts_with("_job")) continue;
    std::string& text = files[name] = base::read_file(entry.path());
    for (size_t at = 0; (at = text.find(place)) != std::string::npos;) text.replace(at, place.size(), "DIR");
  }
  return files;
}

}  // namespace trireme::batch
