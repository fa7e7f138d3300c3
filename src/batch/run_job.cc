// Setting a job up under a lock, then working on it.
#include "batch/run_job.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "batch/job_plan.h"
#include "batch/report.h"
#include "batch/state/posix_file.h"

namespace trireme::batch {
namespace {

/// The worker ends before its job, which goes on when it is started again: it was told to stop while the job
/// was set up, or has no room.
struct Stopped {
  std::string reason;
};

/// Calls `write`, for which a full disk is a reason to be started again.
template <class Write>
auto unless_full(const Write& write) {
  try {
    return write();
  } catch (const base::Error& e) {
    if (e.code() != base::ErrorCode::exhausted) throw;
    throw Stopped{e.message()};
  }
}

/// A model's fields under the names that the options give them.
std::vector<data::Field> named_outputs(const JobOptions& options, const RowModel& model) {
  std::vector<data::Field> fields = model.outputs();
  const std::vector<data::Field> own = fields;
  for (const auto& [output, name] : options.renamed_outputs()) {
    std::string known;
    bool is_there = false;
    for (size_t i = 0; i < own.size(); ++i) {
      known += (i == 0 ? "" : ", ") + own[i].name;
      if (own[i].name != output) continue;
      fields[i].name = name;
      is_there = true;
    }
    base::require(is_there, "output_columns: the model has no output '", output, "'; it has ", known);
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto is_same = [&](const data::Field& f) { return f.name == fields[i].name; };
    base::require(std::none_of(fields.begin(), fields.begin() + static_cast<std::ptrdiff_t>(i), is_same),
                  "two outputs have the name '", fields[i].name, "': name them with output_columns");
    base::require(std::find(options.input_keep.begin(), options.input_keep.end(), fields[i].name) ==
                      options.input_keep.end(),
                  "the output '", fields[i].name,
                  "' has the name of a column that is kept: name it with output_columns");
  }
  return fields;
}

/// What is said of the model in files of the output that have a place for it.
std::vector<std::pair<std::string, std::string>> metadata_of(const base::Json& identity) {
  std::vector<std::pair<std::string, std::string>> out;
  if (!identity.is_object()) return out;
  for (const base::JsonMember& m : identity.as_object()) {
    out.emplace_back("trireme." + m.key, m.value.is_string() ? m.value.as_string() : m.value.dump());
  }
  return out;
}

/// Takes bytes, and keeps none.
class Nowhere : public data::StoreWriter {
 public:
  void write(std::string_view bytes) override { bytes_ += static_cast<int64_t>(bytes.size()); }
  int64_t written_bytes() const override { return bytes_; }
  void commit() override {}

 private:
  int64_t bytes_ = 0;
};

/// Refuses what the output's format cannot hold, before the job is begun with it.
void check_output(const JobOptions& options, const RowModel& model, const std::vector<data::Field>& input) {
  const OutputForm form = output_form(options, directory_of(options, 0), model);
  Nowhere nowhere;
  data::make_row_writer(nowhere, written_fields(form, input), form.writer);
}

/// Refuses a directory in which somebody else's files would mix with the job's.
void check_empty(const data::Store& store, const JobDirectory& directory) {
  if (!store.exists(directory.at(""))) return;
  for (const data::StoreEntry& entry : store.list(directory.at(""))) {
    const std::string name = directory.name_of(entry.path);
    base::require(!name.starts_with("part-") && name != "errors", "the output directory '", directory.output,
                  "' holds '", name, "', but no job that wrote it: give another directory");
  }
}

/// Takes a lock that others hold for as long as they cut the input.
void lock_setup(PosixFile& file, const WorkerHooks& hooks, base::Env env) {
  constexpr auto kPause = std::chrono::milliseconds(20);
  for (bool told = false; !file.try_lock(); told = true) {
    if (!told) env.log.info("batch", "waits", {{"for", "another worker that cuts the input"}});
    if (std::string reason = hooks.stop_reason(); !reason.empty()) throw Stopped{std::move(reason)};
    std::this_thread::sleep_for(kPause);
  }
}

/// The manifest that is there, or a new one.
Manifest set_up(const JobOptions& options, const RowModel& model, const std::vector<std::string>& paths,
                const WorkerHooks& hooks, base::Env env) {
  const JobDirectory directory = directory_of(options, 0);
  PosixFile lock = unless_full([&] { return PosixFile(directory.setup_lock(), O_RDWR | O_CREAT); });
  lock_setup(lock, hooks, env);
  // Of the time before the lock, this machine may remember that there was no manifest.
  unless_full([&] { forget_absent_names(directory.state, "setup.look"); });
  if (base::file_exists(directory.manifest())) return read_manifest(directory.manifest());
  check_empty(*data::store_of(options.output_directory), directory);
  const int64_t begin = env.clock.now_ns();
  const Manifest made = plan_job(options, model, paths, [&] {
    if (std::string reason = hooks.stop_reason(); !reason.empty()) throw Stopped{std::move(reason)};
  });
  remove_file(directory.journal());  // of an earlier start that ended before there was a manifest
  unless_full([&] { write_manifest(directory.manifest(), made); });
  env.log.info("batch", "planned",
               {{"files", made.files.size()},
                {"chunks", made.chunks.size()},
                {"rows", made.rows()},
                {"ms", (env.clock.now_ns() - begin) / base::kNsPerMs}});
  return made;
}

WorkerEnd work(const JobOptions& options, const Manifest& manifest, RowModel& model, WorkerHooks hooks,
               base::Env env) {
  const JobDirectory directory = directory_of(options, static_cast<int64_t>(manifest.chunks.size()));
  OutputForm form = output_form(options, directory, model);
  StageTrace trace(!options.trace.empty());
  WorkerEnd end;
  {
    std::optional<ChunkDesk> desk;
    try {
      desk.emplace(directory, manifest.job, *form.store, options.lease.ns, env);
    } catch (const base::Error& e) {
      // Who holds the journal, or the store, comes back, and a disk has room again.
      if (e.code() != base::ErrorCode::unavailable && e.code() != base::ErrorCode::exhausted) throw;
      throw Stopped{e.message()};
    }
    form.temporary = desk->temporary();
    Worker worker({.options = options,
                   .manifest = manifest,
                   .form = form,
                   .desk = *desk,
                   .model = model,
                   .trace = trace,
                   .env = env},
                  std::move(hooks));
    end = worker.run();
    desk->look([&](const ChunkTable& table) {
      if (end.all_done && table.errors() > 0 && table.rows() == 0)
        env.log.warning("batch", "no row was answered",
                        {{"rows", table.errors()}, {"errors", directory.errors()}});
    });
  }
  unless_full([&] {
    if (!options.trace.empty()) base::write_file_atomic(options.trace, trace.json());
    if (end.all_done) base::write_file_atomic(directory.report(), report_of(options, manifest, directory));
  });
  return end;
}

}  // namespace

OutputForm output_form(const JobOptions& options, const JobDirectory& directory, const RowModel& model) {
  // Field by field: what throws in the middle of a nested list, GCC 12 does not undo rightly.
  OutputForm form;
  form.store = data::store_of(directory.at(""));
  form.directory = directory;
  form.writer.format = options.output_format;
  form.writer.compression = options.output_compression;
  form.writer.metadata = metadata_of(model.identity());
  form.outputs = named_outputs(options, model);
  form.keep = options.input_keep;
  return form;
}

WorkerEnd run_job(const JobOptions& options, const OpenModel& open_model, WorkerHooks hooks, base::Env env) {
  options.check();
  const JobDirectory directory = directory_of(options, 0);
  try {
    unless_full([&] {
      make_directories(directory.state);
      make_directories(directory.workers());
      if (data::store_of(directory.at(""))->is_local()) make_directories(directory.temporary());
    });
    const bool is_there = base::file_exists(directory.manifest());
    // What can be refused at once is refused before a model is opened.
    if (is_there) check_same_options(read_manifest(directory.manifest()), options);
    const std::vector<std::string> paths = input_paths(options);
    base::require(!paths.empty(), "the input has no files");
    const InputColumns columns = input_columns(options, paths);
    const std::unique_ptr<RowModel> model = open_model(options.model, columns.fields);
    if (!is_there && columns.has_rows) {
      try {
        check_columns(columns.fields, *model, options.input_keep);
      } catch (const base::Error& e) {
        throw e.with(base::concat("input '", columns.path, "'"));
      }
      check_output(options, *model, columns.fields);
    }
    const Manifest manifest = set_up(options, *model, paths, hooks, env);
    check_same_options(manifest, options);
    check_same_model(manifest, model->identity());
    if (is_there) check_same_input(manifest, options, paths);
    return work(options, manifest, *model, std::move(hooks), env);
  } catch (const Stopped& stopped) {
    return {.all_done = false, .reason = stopped.reason};
  }
}

}  // namespace trireme::batch
