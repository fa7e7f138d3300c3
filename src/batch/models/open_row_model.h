// Opens the model of a batch job: which kind it is, its front, and the instances that run it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "batch/model_options.h"
#include "batch/row_model.h"
#include "model/model.h"

namespace trireme::batch {

/// `open` reads what `options.model` names. Task "auto": "generate" for a causal language model with its
/// tokenizer, "embed" for an encoder with a sentence embedding, else "run": the graph as it is. Returns when
/// the instances are ready. `clock` outlives the model. Throws unsupported for a task that the model is not
/// made for, and what is wrong with the model.
std::unique_ptr<RowModel> open_row_model(const ModelOptions& options,
                                         const std::function<model::Model(const std::string& path)>& open,
                                         const base::Clock& clock);

}  // namespace trireme::batch
