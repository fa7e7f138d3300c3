// The final report of a run: a Markdown page with plots, made from its log.
#pragma once

#include <string>

#include "train/report/run_log.h"

namespace trireme::train {

/// Writes report.md and the plots it shows (plots/*.svg) into the run directory from its log.jsonl, so a run
/// that was resumed reports as one. Throws not_found without a log.
void write_report(const std::string& directory);

/// The page's text; plots are referred to by relative paths.
std::string report_text(const LoggedRun& run);

}  // namespace trireme::train
