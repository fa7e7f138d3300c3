// A batch job from its options to its last chunk: what `trireme batch` and the server's batches run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/report/env.h"
#include "batch/job_options.h"
#include "batch/row_model.h"
#include "batch/worker.h"
#include "data/rows/rows.h"

namespace trireme::batch {

/// Opens the model of a job whose input has these columns.
using OpenModel = std::function<std::unique_ptr<RowModel>(const ModelOptions& options,
                                                          const std::vector<data::Field>& fields)>;

/// Begins the job in its directory, or goes on with the one that is there, as one of its workers. The first
/// worker cuts the input; others that start meanwhile wait. Throws invalid_argument for a directory that
/// holds a job with other options, another model or other input, or files of somebody else.
WorkerEnd run_job(const JobOptions& options, const OpenModel& open_model, WorkerHooks hooks, base::Env env);

/// What the form of the output follows from.
OutputForm output_form(const JobOptions& options, const JobDirectory& directory, const RowModel& model);

}  // namespace trireme::batch
