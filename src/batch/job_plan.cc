// Cutting the input of a job, and finding out whether it is still the same.
#include "batch/job_plan.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "batch/state/worker_seat.h"

namespace trireme::batch {
namespace {

constexpr size_t kThreads = 8;    // most of the time of a file is waiting for its store
constexpr size_t kMostNamed = 8;  // differences in one message

std::unique_ptr<data::RowFile> open_input(const JobOptions& options, const std::string& path,
                                          const std::vector<data::Field>& partitions) {
  return data::open_row_file(data::store_of(path), path, options.row_file_options(partitions));
}

/// Whether the file has a row; cutting it stops at the first one.
bool holds_rows(const data::RowFile& file) {
  struct Found {};
  try {
    file.cut(1, [](const data::RowSpan&) { throw Found{}; });
  } catch (const Found&) {
    return true;
  }
  return false;
}

/// Calls `work(i)` for all files on a few threads. The first error of the lowest file is thrown.
void for_each_file(size_t files, const AskStop& ask_stop, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0}, running{0};
  std::atomic<bool> has_failed{false};
  std::mutex mutex;
  size_t failed_at = SIZE_MAX;
  std::exception_ptr error;
  std::vector<std::thread> threads;
  const auto run = [&] {
    for (size_t i = next++; i < files && !has_failed; i = next++) {
      try {
        work(i);
      } catch (...) {
        has_failed = true;
        const std::lock_guard lock(mutex);
        if (i < failed_at) failed_at = i, error = std::current_exception();
      }
    }
    --running;
  };
  running = std::min(kThreads, files);
  for (size_t t = 0; t < std::min(kThreads, files); ++t) threads.emplace_back(run);
  std::exception_ptr stopped;
  while (running > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    try {
      if (!stopped) ask_stop();
    } catch (...) {
      stopped = std::current_exception();
      has_failed = true;
    }
  }
  for (std::thread& t : threads) t.join();
  if (stopped) std::rethrow_exception(stopped);
  if (error) std::rethrow_exception(error);
}

/// A directory with a slash at its end, so that two can be compared: a local one whichever way it is spelled
/// or linked, a bucket's as it is written.
std::string folder_of(const std::string& directory) {
  std::string plain = plain_directory(directory);
  if (plain.find("://") == std::string::npos) {
    std::error_code error;
    std::filesystem::path whole = std::filesystem::absolute(plain, error);
    if (!error) whole = std::filesystem::weakly_canonical(whole, error);
    if (!error) plain = plain_directory(whole.string());
  }
  return plain.ends_with('/') ? plain : plain + "/";
}

[[noreturn]] void fail_other(const std::string& what, const std::vector<std::string>& lines) {
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMostNamed); ++i) text += (i == 0 ? "" : "; ") + lines[i];
  if (lines.size() > kMostNamed) text += base::concat("; and ", lines.size() - kMostNamed, " more");
  base::fail_invalid("the job in this directory was begun with ", what, ": ", text,
                     ". Give it what it had, or another output directory");
}

/// The identity of a job's model, with the options that the build which began the job did not have yet: it
/// worked as they are by default.
base::Json with_later_options(base::Json then, const base::Json& now) {
  base::Json* known = then.find("options");
  const base::Json* present = now.find("options");
  if (known == nullptr || present == nullptr || !present->is_object()) return then;
  ModelOptions usual;
  const base::Json defaults = base::OptionList(usual).to_json();
  for (const base::JsonMember& m : present->as_object()) {
    const base::Json* as_usual = defaults.find(m.key);
    if (!known->contains(m.key) && as_usual != nullptr && *as_usual == m.value) known->set(m.key, m.value);
  }
  return then;
}

}  // namespace

std::string field_names(const std::vector<data::Field>& fields) {
  std::string names;
  for (const data::Field& f : fields) names += (names.empty() ? "" : ", ") + f.name;
  return names;
}

void check_columns(const std::vector<data::Field>& fields, const RowModel& model,
                   const std::vector<std::string>& keep) {
  std::vector<std::string> wanted = model.columns();
  wanted.insert(wanted.end(), keep.begin(), keep.end());
  for (const std::string& name : wanted) {
    const bool is_there =
        std::any_of(fields.begin(), fields.end(), [&](const data::Field& f) { return f.name == name; });
    base::require(is_there, "there is no column '", name, "'; there are ", field_names(fields));
  }
}

InputColumns input_columns(const JobOptions& options, const std::vector<std::string>& paths) {
  const std::vector<data::Field> partitions = options.partitions_of(paths);
  InputColumns columns;
  for (size_t i = 0; i < paths.size() && !columns.has_rows; ++i) {
    const std::unique_ptr<data::RowFile> file = open_input(options, paths[i], partitions);
    columns.fields = file->fields();
    columns.path = paths[i];
    try {
      columns.has_rows = holds_rows(*file);
    } catch (const base::Error& e) {
      throw e.with(base::concat("input '", paths[i], "'"));
    }
  }
  return columns;
}

std::string plain_directory(std::string path) {
  constexpr std::string_view kScheme = "file://";
  if (path.starts_with(kScheme)) path.erase(0, kScheme.size());
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

JobDirectory directory_of(const JobOptions& options, int64_t chunks) {
  JobDirectory out;
  out.state = plain_directory(options.state_directory());
  out.output = options.output_directory;
  if (const size_t at = out.output.find('?'); at != std::string::npos && out.output.find("://") < at) {
    out.query = out.output.substr(at);
    out.output.resize(at);
  }
  out.output = plain_directory(out.output);
  out.ending =
      data::file_ending({.format = options.output_format, .compression = options.output_compression});
  out.chunks = chunks;
  return out;
}

std::vector<std::string> input_paths(const JobOptions& options) {
  // A directory of pictures is one file of rows.
  std::vector<std::string> paths =
      options.input_format == "images" ? options.input_files : data::expand_paths(options.input_files);
  const std::string output = folder_of(options.output_directory);
  for (const std::string& given : options.input_files) {
    base::require(!output.starts_with(folder_of(given)), "the output directory lies in the input '", given,
                  "'");
  }
  std::map<std::string, std::string> parents;  // many files share one, and each takes calls of the system
  for (std::string& path : paths) {
    path = plain_directory(path);
    const std::string parent = path.substr(0, path.rfind('/') + 1);
    const auto [at, is_new] = parents.try_emplace(parent);
    if (is_new) at->second = folder_of(parent.empty() ? "." : parent);
    base::require(!at->second.starts_with(output), "the output directory lies among the input: '", path, "'");
  }
  return paths;
}

Manifest plan_job(const JobOptions& options, const RowModel& model, const std::vector<std::string>& paths,
                  const AskStop& ask_stop) {
  Manifest m;
  m.job = draw_number();
  m.wall_ns = base::SystemClock().wall_ns();
  m.identity = model.identity();
  m.result = options.result();
  JobOptions copy = options;
  m.options = base::OptionList(copy).to_json();
  m.partitions = options.partitions_of(paths);
  m.files.resize(paths.size());
  std::vector<std::vector<data::RowSpan>> spans(paths.size());
  for_each_file(paths.size(), ask_stop, [&](size_t i) {
    try {
      const std::unique_ptr<data::RowFile> file = open_input(options, paths[i], m.partitions);
      m.files[i].path = paths[i];
      m.files[i].content_id = file->content_id();
      file->cut(options.chunk_rows, [&](const data::RowSpan& span) {
        if (spans[i].empty()) check_columns(file->fields(), model, options.input_keep);
        spans[i].push_back(span);
      });
    } catch (const base::Error& e) {
      throw e.with(base::concat("input '", paths[i], "'"));
    }
  });
  for (size_t i = 0; i < spans.size(); ++i) {
    for (const data::RowSpan& span : spans[i])
      m.chunks.push_back({.file = static_cast<uint32_t>(i), .span = span});
  }
  return m;
}

void check_same_options(const Manifest& manifest, const JobOptions& options) {
  const std::vector<std::string> lines = differences(manifest.result, options.result());
  if (!lines.empty()) fail_other("other options", lines);
}

void check_same_model(const Manifest& manifest, const base::Json& identity) {
  const std::vector<std::string> lines =
      differences(with_later_options(manifest.identity, identity), identity);
  if (!lines.empty()) fail_other("another model", lines);
}

void check_same_input(const Manifest& manifest, const JobOptions& options,
                      const std::vector<std::string>& paths) {
  std::vector<std::string> lines;
  std::vector<std::string> then, now = paths;
  for (const InputFile& f : manifest.files) then.push_back(f.path);
  if (then != now) {
    std::sort(then.begin(), then.end());
    std::sort(now.begin(), now.end());
    std::vector<std::string> gone, added;
    std::set_difference(then.begin(), then.end(), now.begin(), now.end(), std::back_inserter(gone));
    std::set_difference(now.begin(), now.end(), then.begin(), then.end(), std::back_inserter(added));
    for (const std::string& path : gone) lines.push_back("'" + path + "' is gone");
    for (const std::string& path : added) lines.push_back("'" + path + "' is new");
    if (lines.empty()) lines.emplace_back("the files come in another order");
    fail_other("other input", lines);
  }
  std::vector<uint64_t> ids(manifest.files.size());
  for_each_file(
      ids.size(), [] {},
      [&](size_t i) { ids[i] = open_input(options, manifest.files[i].path, {})->content_id(); });
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] != manifest.files[i].content_id)
      lines.push_back("'" + manifest.files[i].path + "' has changed");
  }
  if (!lines.empty()) fail_other("other input", lines);
}

}  // namespace trireme::batch
