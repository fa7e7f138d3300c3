// Lists the names in a directory with readdir().
#include "base/files/directory.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>

namespace trireme::base {

std::vector<std::string> names_in(const std::string& path, std::error_code& error) {
  error.clear();
  const auto close = [](DIR* d) { ::closedir(d); };
  const std::unique_ptr<DIR, decltype(close)> directory(::opendir(path.c_str()), close);
  std::vector<std::string> names;
  errno = directory == nullptr ? errno : 0;
  while (directory != nullptr) {
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) error.assign(errno, std::generic_category());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace trireme::base
