// The store that texts of a server leave pages of known beginnings in, and what is counted of it.
#pragma once

#include <memory>

#include "engine/pages/page_store.h"
#include "serve/config/options.h"
#include "serve/seeing/metrics.h"

namespace trireme::serve {

/// Null where no pages are to be kept. Throws unavailable where the directory cannot be used. The registry
/// reads the store as long as it lives.
std::shared_ptr<engine::PageStore> open_page_store(const ServeOptions& options, MetricRegistry& metrics);

}  // namespace trireme::serve
