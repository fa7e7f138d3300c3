// Detects which models' files have changed since they were loaded.
#include "serve/repository/file_watch.h"

#include <algorithm>
#include <utility>

#include "serve/repository/repository_files.h"

namespace trireme::serve {

std::string FileWatch::fingerprint(const std::string& name) const {
  std::string all;
  for (const std::string& home : model_homes(roots_, name)) all += files_fingerprint(home, others_) + "\n";
  return all;
}

void FileWatch::note(const std::string& name) { loaded_[name] = fingerprint(name); }

bool FileWatch::has_new_files(const std::string& name) {
  std::string files = fingerprint(name);
  if (loaded_[name] == files || std::exchange(seen_[name], files) != files) return false;
  loaded_[name] = std::move(files);
  return true;
}

std::vector<std::string> FileWatch::missing(const std::vector<std::string>& names) const {
  std::vector<std::string> gone;
  for (const auto& [name, files] : loaded_) {
    if (!std::binary_search(names.begin(), names.end(), name)) gone.push_back(name);
  }
  return gone;
}

void FileWatch::forget(const std::string& name) {
  loaded_.erase(name);
  seen_.erase(name);
}

}  // namespace trireme::serve
