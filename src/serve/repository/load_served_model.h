// The kinds of models that are served.
#pragma once

#include <memory>
#include <string>

#include "engine/ranks/rank_service.h"
#include "serve/models/served_model.h"

namespace trireme::serve {

/// Loads a version by its kind, compiles and warms up; throws what is wrong with the model.
std::shared_ptr<ServedModel> load_served_model(const ModelSource& source, const ModelHost& host,
                                               const ModelMetrics* earlier);

/// On another rank of a job: loads what the first one serves, by SessionOptions::model_key or
/// DecodeOptions::model_key, and follows its sessions. `options`: the server's; outlives what is returned.
std::shared_ptr<const engine::FollowSession> load_to_follow(const std::string& key,
                                                            const ServeOptions& options);

}  // namespace trireme::serve
