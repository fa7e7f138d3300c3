// Reports of load tests: a text table, JSON for machines, a self-contained page with plots for people.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text/json.h"
#include "load/result.h"
#include "load/scenario.h"
#include "load/requests/server_times.h"
#include "load/slo.h"

namespace trireme::load {

/// One measurement and how it was judged.
struct Measured {
  LoadResult result;
  std::vector<SloOutcome> slos;
  std::optional<ScenarioResult> scenario;
  int64_t trials = 0;               // --stability: windows tried; 0 = not asked
  bool stable = false;              // the last three agreed
  std::vector<ServerTimes> server;  // of each model that tells
};

/// What a reader of the figures must know: that the generator or its connections were the limit, that the
/// server did not keep up, that nothing succeeded.
std::vector<std::string> warnings_of(const Measured& measured);

struct Report {
  std::string title;
  std::string url;
  std::string what;  // Payload::description
  int64_t items_per_request = 1;
  base::Json options;          // the record of the run
  std::vector<Measured> runs;  // one, or one for each concurrency or rate tried
  double found_rate = -1;      // --find-rate: highest rate that met all goals; 0 = none did; -1 = not asked
  double found_concurrency = -1;       // --find-concurrency: likewise
  std::string started;                 // "2026-11-21T23:00:00Z"
  std::optional<base::Error> failure;  // why there are no further runs
  bool is_interrupted() const { return !runs.empty() && runs.back().result.is_interrupted; }
};

std::string text_report(const Report& report);
base::Json json_report(const Report& report);
/// A line for each run: the columns of perf_analyzer's reports, times in us; then the mean and the failures.
std::string csv_report(const Report& report);
/// A line for each counted request of every run, times in us from the beginning of the counted time.
std::string record_csv(const Report& report);
/// One file, no scripts, no outside references; colours follow the reader's light or dark setting.
std::string html_report(const Report& report);

/// A scenario's verdict, metric, and the counts behind them.
std::string scenario_text(const ScenarioResult& result);
base::Json scenario_json(const ScenarioResult& result);

}  // namespace trireme::load
