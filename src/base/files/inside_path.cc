// Checks whether a path lies inside a directory: makes both canonical and compares them part by part.
#include "base/files/inside_path.h"

#include <algorithm>
#include <filesystem>

namespace trireme::base {

std::optional<std::string> path_inside(const std::string& root, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code no_root, no_path;
  const fs::path base = fs::canonical(root, no_root), resolved = fs::canonical(path, no_path);
  if (no_root || no_path) return std::nullopt;
  const auto differ = std::mismatch(base.begin(), base.end(), resolved.begin(), resolved.end());
  if (differ.first != base.end()) return std::nullopt;
  return resolved.string();
}

}  // namespace trireme::base
