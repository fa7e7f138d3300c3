// The `load` verb's work: measure as the options say, report, judge.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "load/load_options.h"
#include "load/report/report.h"

namespace trireme::load {

/// Runs one measurement, a sweep, or a search for the highest load. `progress` gets one line before each run.
/// Once `stop` is true the report has what was measured until then; so it has if the server is lost after the
/// first run.
Report measure(const LoadOptions& options, const std::function<void(const std::string&)>& progress,
               const std::atomic<bool>* stop = nullptr);

/// True if every run had answers and met its goals, and a scenario's run is valid; for a search, if any load
/// did.
bool goals_met(const Report& report);

}  // namespace trireme::load
