// Files of this machine as a store.
#pragma once

#include <memory>

#include "data/store/store.h"

namespace trireme::data {

/// Paths are plain, or "file:///…". Files are read where they are asked for, never mapped: a file that
/// another process cuts off is an error and no signal, and what was read does not stay in this process's
/// memory.
std::shared_ptr<const Store> make_local_store();

}  // namespace trireme::data
