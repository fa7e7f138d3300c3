// The OpenAI API without a server: one model that answers the lines of a batch file.
#pragma once

#include <memory>

#include "base/report/env.h"
#include "batch/model_options.h"
#include "batch/row_model.h"

namespace trireme::serve {

/// Loads the model as the server does, and listens to nobody. Whatever model a line names, this one answers
/// it. `options.model` is a directory, or a GGUF file that is alone in its own. Throws what is wrong with the
/// model, and invalid_argument for options that requests bring themselves. `env` outlives it.
std::unique_ptr<batch::RowModel> open_offline_rows(const batch::ModelOptions& options, const base::Env& env);

}  // namespace trireme::serve
