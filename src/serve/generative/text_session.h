// The options of a served language model's sessions, and what another rank of a job does in them.
#pragma once

#include <memory>

#include "engine/decode/decode_model.h"
#include "engine/ranks/rank_service.h"
#include "serve/config/options.h"
#include "serve/config/run_config.h"
#include "serve/models/follow_key.h"

namespace trireme::serve {

/// `run`: what the model's own configuration says; the same on all ranks of a job.
engine::DecodeOptions session_options(const RunConfig& run, const ServeOptions& options);

/// Loads the model as the first rank has; `options` are the server's. What the first rank alone has, like
/// adapters, drafts and pages on a disk, comes with its sessions.
std::shared_ptr<const engine::FollowSession> follow_texts(const FollowKey& key, const ServeOptions& options);

}  // namespace trireme::serve
