// The report of a job that is done: what it was, where its time went, what it cost, and what would make it
// faster.
#pragma once

#include <string>

#include "batch/job_options.h"
#include "batch/state/job_directory.h"
#include "batch/state/manifest.h"

namespace trireme::batch {

/// A page of Markdown, from the manifest and the journal.
std::string report_of(const JobOptions& options, const Manifest& manifest, const JobDirectory& directory);

}  // namespace trireme::batch
