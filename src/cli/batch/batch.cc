// trireme batch: runs a model over a data set as one worker of a job, and tells how a job stands.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <cstdlib>
#include <iostream>
#include <malloc.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/file.h"
#include "batch/job_plan.h"
#include "batch/models/open_row_model.h"
#include "batch/run_job.h"
#include "batch/status.h"
#include "batch/stop_notice.h"
#include "batch/verify.h"
#include "cli/batch/local_workers.h"
#include "cli/batch/view.h"
#include "cli/launch_job.h"
#include "cli/model_input.h"
#include "cli/start_signals.h"
#include "cli/stop_signals.h"
#include "cli/train_command.h"
#include "cli/verb.h"
#include "serve/jobs/offline_rows.h"

namespace trireme::cli {
namespace {

struct BatchCommand {
  std::string job;
  batch::JobOptions options;
  BatchViewOptions view;

  void fields(base::OptionList& f) {
    f.add("job", &job,
          "job file in YAML (docs/batch.md); `status`, `resume` and `verify` are verbs of their own")
        .positional()
        .required();
    options.fields(f);
    view.fields(f);
  }
};

struct LookCommand {
  std::string job;
  bool json = false;

  void fields(base::OptionList& f) {
    f.add("job", &job, "the job file, or the job's output or state directory").positional().required();
    f.add("json", &json, "one JSON object");
  }
};

/// The options that the job in a directory was begun with.
batch::JobOptions recorded_options(const std::string& directory) {
  const std::string plain = batch::plain_directory(directory);
  const bool is_output = base::file_exists(plain + "/_job/manifest");
  const batch::Manifest manifest = batch::read_manifest(plain + (is_output ? "/_job/manifest" : "/manifest"));
  batch::JobOptions options;
  base::OptionList(options).parse_json(manifest.options);
  // The job's directories may have been moved since, or be mounted at another path here.
  (is_output ? options.output_directory : options.state) = plain;
  return options;
}

/// Given a job file, returns the options in it; given a directory, those that its job was begun with.
batch::JobOptions options_of(const std::string& job) {
  if (std::filesystem::is_directory(batch::plain_directory(job))) return recorded_options(job);
  batch::JobOptions options;
  batch::read_job(base::read_file(job), job, options);
  return options;
}

/// Makes the allocators return freed memory to the system at once instead of keeping the peak, so that a
/// worker's memory is what it uses, however long it runs. Must be called before any allocator is used.
void keep_memory_flat() {
  constexpr int kReturnedBytes = 128 << 10;  // blocks of at least this size are mappings of their own
  ::mallopt(M_MMAP_THRESHOLD, kReturnedBytes);
  ::mallopt(M_TRIM_THRESHOLD, kReturnedBytes);
  ::setenv("ARROW_DEFAULT_MEMORY_POOL", "system", 0);
}

/// Runs as a worker until the job is done or something stops it; gives the exit code.
int work(const batch::JobOptions& options, const BatchViewOptions& view_options, StartSignals& start,
         base::Env& env) {
  options.check();
  keep_memory_flat();
  // A full disk, or a reader of the progress that has exited, must fail a write instead of ending the worker.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  StopSignals signals;  // constructed before the threads of the model, which inherit the mask
  start.begun();
  batch::StopNotice notice(options.preempt_notice);
  BatchView view(view_options, options, env);
  batch::WorkerHooks hooks;
  hooks.stop_reason = [&]() -> std::string {
    if (const int signal = signals.seen(); signal != 0) return std::string("signal ") + strsignal(signal);
    if (notice.has_come()) return "notice that the machine is taken away";
    return view.is_budget_spent() ? "the budget is spent" : "";
  };
  hooks.progress = [&](const batch::Progress& p) { view.show(p); };
  const batch::OpenModel open = [&](const batch::ModelOptions& model, const std::vector<data::Field>&) {
    if (options.input_format == "openai") return serve::open_offline_rows(model, env);
    return batch::open_row_model(
        model, [](const std::string& path) { return open_model(path); }, env.clock);
  };
  const batch::WorkerEnd end = view.was_budget_spent() ? batch::WorkerEnd{.reason = "the budget is spent"}
                                                       : batch::run_job(options, open, std::move(hooks), env);
  view.finish();
  if (end.all_done) {
    std::cout << batch::status_of(options, env.clock).text();
    return 0;
  }
  const bool is_spent = view.is_budget_spent();
  env.log.info("batch", "stopped",
               {{"reason", end.reason},
                {"go_on", is_spent ? "start it again with a larger --budget" : "start it again"}});
  return is_spent ? 1 : kInterrupted;
}

/// Runs one worker in this process, or starts several workers on this machine with the same command line.
int work_or_share(const batch::JobOptions& options, const BatchViewOptions& view_options, StartSignals& start,
                  std::span<const std::string> words, base::Env& env) {
  if (options.workers == 1) return work(options, view_options, start, env);
  options.check();
  HeldSignals signals;  // constructed before the threads of the port, which inherit the mask
  start.begun();
  BatchView view(view_options, options, env);
  const int code = LocalWorkers(options, words, env).run(signals, [&] { view.show_status(); });
  view.finish();
  if (code == 0) std::cout << batch::status_of(options, env.clock).text();
  return code;
}

int status_main(std::span<const std::string> words, base::Env& env) {
  LookCommand c;
  if (!parse(c, words, "batch status")) return 0;
  const batch::JobStatus status = batch::status_of(options_of(c.job), env.clock);
  std::cout << (c.json ? status.json().dump() + "\n" : status.text());
  return 0;
}

int verify_main(std::span<const std::string> words, base::Env&) {
  LookCommand c;
  if (!parse(c, words, "batch verify")) return 0;
  const batch::Verified v = batch::verify_job(options_of(c.job));
  if (c.json) {
    const base::JsonArray findings(v.findings.begin(), v.findings.end());
    std::cout << base::Json::object({{"whole", v.is_whole()},
                                     {"chunks", v.chunks},
                                     {"chunks_done", v.chunks_done},
                                     {"rows", v.rows},
                                     {"errors", v.errors},
                                     {"bytes", v.bytes},
                                     {"findings", findings},
                                     {"left_out", v.left_out}})
                     .dump()
              << "\n";
  } else {
    for (const std::string& finding : v.findings) std::cout << finding << "\n";
    if (v.left_out > 0) std::cout << "and " << v.left_out << " more\n";
    std::cout << v.chunks_done << " of " << v.chunks << " chunks are done: " << v.rows << " rows and "
              << v.errors << " failed ones, " << v.bytes << " bytes; "
              << (v.is_whole() ? "all is as it was written" : "the job is not whole") << "\n";
  }
  return v.is_whole() ? 0 : 1;
}

int resume_main(std::span<const std::string> words, base::Env& env) {
  BatchCommand given;
  if (!parse(given, words, "batch resume")) return 0;
  StartSignals start;
  BatchCommand c;
  c.options = options_of(given.job);
  base::OptionList(c).parse_flags(words);
  c.options.complete();
  std::vector<std::string> all{"resume"};
  all.insert(all.end(), words.begin(), words.end());
  return work_or_share(c.options, c.view, start, all, env);
}

}  // namespace

int batch_main(std::span<const std::string> words, base::Env& env) {
  const std::string first = words.empty() ? "" : words[0];
  if (first == "status") return status_main(words.subspan(1), env);
  if (first == "verify") return verify_main(words.subspan(1), env);
  if (first == "resume") return resume_main(words.subspan(1), env);
  BatchCommand given;
  if (!parse(given, words, "batch")) return 0;
  StartSignals start;
  BatchCommand c;
  batch::read_job(base::read_file(given.job), given.job, c.options);
  base::OptionList(c).parse_flags(words);
  c.options.complete();
  return work_or_share(c.options, c.view, start, words, env);
}

std::string batch_markdown() {
  return "Keys of the job file; each is a flag too. `trireme batch status JOB`, `trireme batch verify JOB` "
         "(both with "
         "`--json`) and `trireme batch resume DIRECTORY [flags]` look at a job and go on with it: "
         "docs/batch.md.\n\n" +
         options_markdown<BatchCommand>();
}

}  // namespace trireme::cli
