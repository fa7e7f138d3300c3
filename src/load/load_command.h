// The `load` verb's work: measure as the options say, report, judge.
#pragma once

#include <functional>
#include <string>

#include "load/load_options.h"
#include "load/report.h"

namespace trireme::load {

/// Runs one measurement, a sweep, or the search for the highest rate. `progress` gets one line before each
/// run.
Report measure(const LoadOptions& options, const std::function<void(const std::string&)>& progress);

/// True if every run met its goals and a scenario's run is valid; for a search, if any rate did.
bool goals_met(const Report& report);

}  // namespace trireme::load
