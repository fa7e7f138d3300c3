// trireme load: sends requests to a server on a schedule and reports latency, throughput and whether the
// goals were met.
#include <pthread.h>

#include <atomic>
#include <csignal>
#include <iostream>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/files/file.h"
#include "cli/verb.h"
#include "load/report/compare.h"
#include "load/run/load_command.h"

namespace trireme::cli {
namespace {

base::Json read_result(const std::string& path) {
  try {
    return base::parse_json(base::read_file(path));
  } catch (const base::Error& e) {
    throw e.with(path);
  }
}

/// Stops the load on the first SIGINT or SIGTERM; a second one ends the program at once. While it lives, the
/// signals are blocked in all threads that are started.
class Interruption {
 public:
  Interruption() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] {
      constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 50 * base::kNsPerMs};
      while (!is_over_ && !stop) {
        if (sigtimedwait(&signals_, nullptr, &kLook) <= 0) continue;
        std::cerr << "load: stopping; once more ends it at once\n";
        pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
        stop = true;
      }
      while (!is_over_) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    });
  }
  ~Interruption() {
    is_over_ = true;
    thread_.join();
    pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  std::atomic<bool> stop{false};

 private:
  sigset_t signals_{};
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

/// The exit code that shells use for programs that SIGINT ended.
constexpr int kInterruptedExit = 130;

int compare_main(std::span<const std::string> words) {
  load::CompareOptions options;
  if (!parse(options, words, "load compare")) return 0;
  const load::Comparison comparison = load::compare(read_result(options.before), read_result(options.after));
  std::cout << load::comparison_text(comparison);
  if (!options.json.empty())
    base::write_file_atomic(options.json, load::comparison_json(comparison).dump({.indent = 1}) + "\n");
  return load::within(comparison, options.tolerance) ? 0 : 1;
}

}  // namespace

int load_main(std::span<const std::string> words, base::Env&) {
  if (!words.empty() && words[0] == "compare") return compare_main(words.subspan(1));
  load::LoadOptions options;
  if (!parse(options, words, "load")) return 0;
  const load::Report report = [&] {
    Interruption interruption;
    return load::measure(
        options, [](const std::string& run) { std::cerr << "load: running " << run << "\n"; },
        &interruption.stop);
  }();
  std::cout << load::text_report(report);
  if (!options.json.empty())
    base::write_file_atomic(options.json, load::json_report(report).dump({.indent = 1}) + "\n");
  if (!options.csv.empty()) base::write_file_atomic(options.csv, load::csv_report(report));
  if (!options.record.empty()) base::write_file_atomic(options.record, load::record_csv(report));
  if (!options.html.empty()) base::write_file_atomic(options.html, load::html_report(report));
  std::cout.flush();
  if (report.failure) throw *report.failure;
  if (report.is_interrupted()) return kInterruptedExit;
  return load::goals_met(report) ? 0 : 1;
}

std::string load_markdown() {
  return options_markdown<load::LoadOptions>() + "\n`trireme load compare BEFORE AFTER`\n\n" +
         options_markdown<load::CompareOptions>();
}

}  // namespace trireme::cli
