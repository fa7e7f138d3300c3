// Directories for files that a process needs only while it runs, even if it is killed.
#pragma once

#include <memory>
#include <string>

namespace trireme::base {

/// Makes a directory of its own, readable by its owner alone, in the system's place for temporary files: its
/// name begins with `prefix`. It goes with the last owner of the path. A lock on it says that it is in use,
/// so that others know one that a killed process left. Throws unavailable where there is no room.
std::shared_ptr<const std::string> make_scratch(const std::string& prefix);

/// Removes directories of that prefix and this user which no process holds; gives their number.
int remove_stale_scratch(const std::string& prefix);

}  // namespace trireme::base
