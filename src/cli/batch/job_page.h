// The page at `/` of a batch worker's port: progress, rate, stages, failed rows and the end of its job, live.
#pragma once

#include "http/message.h"

namespace trireme::cli {

/// Reads /status.json of the same port each second; nothing is loaded from elsewhere.
http::Response job_page();

}  // namespace trireme::cli
