// Whether a path stays in a directory when its links are followed.
#pragma once

#include <optional>
#include <string>

namespace trireme::base {

/// The canonical form of `path`, links followed, if it is the directory `root` or lies below it. Nothing if
/// it lies elsewhere, or either does not exist. The check is made now, as safe_join's is.
std::optional<std::string> path_inside(const std::string& root, const std::string& path);

}  // namespace trireme::base
