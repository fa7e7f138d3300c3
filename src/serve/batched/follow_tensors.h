// What another rank of a job does of a model of tensors that the first one serves.
#pragma once

#include <memory>

#include "engine/ranks/rank_service.h"
#include "serve/config/options.h"
#include "serve/models/follow_key.h"

namespace trireme::serve {

/// Loads the model as the first rank has; `options` are the server's.
std::shared_ptr<const engine::FollowSession> follow_tensors(const FollowKey& key,
                                                            const ServeOptions& options);

}  // namespace trireme::serve
