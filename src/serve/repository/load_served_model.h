// The kinds of models that are served.
#pragma once

#include <memory>

#include "serve/models/served_model.h"

namespace trireme::serve {

/// Loads a version by its kind, compiles and warms up; throws what is wrong with the model.
std::shared_ptr<ServedModel> load_served_model(const ModelSource& source, const ModelHost& host,
                                               const ModelMetrics* earlier);

}  // namespace trireme::serve
