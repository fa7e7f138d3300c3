// The log settings that KServe clients read and change while the server runs.
#pragma once

#include "base/text/json.h"
#include "base/report/log.h"

namespace trireme::serve {

/// What /v2/logging says: the level as Triton's switches.
base::Json log_settings(const base::Log& log);
/// Applies a JSON object. Ours is one threshold, so a level that is on needs all above it on;
/// other combinations, log_file and other formats are refused by name and then nothing changes.
void update_log_settings(base::Log& log, const base::Json& changes);

}  // namespace trireme::serve
