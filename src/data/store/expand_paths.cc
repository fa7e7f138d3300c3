// Expands patterns to files, visiting only directories that can contain a match.
#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "data/store/object_store.h"
#include "data/store/store.h"

namespace trireme::data {
namespace {

constexpr size_t kMostDepth = 64;  // links between directories may form a cycle

bool has_wildcard(std::string_view part) { return part.find_first_of("*?[") != std::string_view::npos; }

/// The last name of an entry's path, without the query of a URL.
std::string name_of(const StoreEntry& entry) {
  std::string path = entry.path.find("://") == std::string::npos || entry.path.starts_with("file://")
                         ? entry.path
                         : parse_object_url(entry.path).key;
  while (path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

bool is_hidden(const std::string& name) { return name.starts_with('.') || name.starts_with('_'); }

/// A pattern split at its slashes: the path before the first wildcard, and the parts after it.
struct Pattern {
  std::string root;
  std::vector<std::string> parts;
};

Pattern cut(const std::string& path) {
  Pattern pattern;
  const size_t wild = path.find_first_of("*?[");
  const size_t slash = path.rfind('/', wild);
  pattern.root = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  for (size_t at = pattern.root.size(); at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    if (end > at) pattern.parts.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  return pattern;
}

class Expansion {
 public:
  Expansion(const Store& store, std::vector<std::string> parts) : store_(store), parts_(std::move(parts)) {}

  /// Adds files below `directory` that match the parts from `at` on. The part `**` matches any directories.
  void walk(const std::string& directory, size_t at, size_t depth) {
    base::require(depth < kMostDepth, "directories lie deeper than ", kMostDepth, ": '", directory, "'");
    const bool any_depth = parts_[at] == "**";
    const bool last = at + 1 == parts_.size();
    // `**` may also match no directory at all.
    if (any_depth && !last) walk(directory, at + 1, depth);
    for (const StoreEntry& entry : store_.list(directory)) {
      const std::string name = name_of(entry);
      if (any_depth) {
        if (is_hidden(name)) continue;
        if (entry.is_directory) walk(entry.path, at, depth + 1);
        if (last && !entry.is_directory) files_.insert(entry.path);
        continue;
      }
      const bool named = is_hidden(parts_[at]);
      if ((is_hidden(name) && !named) || fnmatch(parts_[at].c_str(), name.c_str(), 0) != 0) continue;
      if (last && !entry.is_directory) files_.insert(entry.path);
      if (!last && entry.is_directory) walk(entry.path, at + 1, depth + 1);
    }
  }
  std::vector<std::string> files() const { return {files_.begin(), files_.end()}; }

 private:
  const Store& store_;
  std::vector<std::string> parts_;
  std::set<std::string> files_;  // `**` may find a file twice
};

std::vector<std::string> expand(const std::string& pattern) {
  const std::shared_ptr<const Store> store = store_of(pattern);
  ObjectUrl url;
  std::string path = pattern;
  if (!store->is_local()) {
    url = parse_object_url(pattern);
    path = url.key;
  }
  const auto full = [&](const std::string& key) { return store->is_local() ? key : url.with_key(key); };
  if (!has_wildcard(path) || store->exists(pattern)) {
    if (!store->is_directory(pattern)) return {pattern};
    Expansion all(*store, {"**"});
    all.walk(pattern, 0, 0);
    return all.files();
  }
  const Pattern parts = cut(path);
  Expansion found(*store, parts.parts);
  found.walk(parts.root.empty() ? "." : full(parts.root), 0, 0);
  std::vector<std::string> files = found.files();
  if (parts.root.empty()) {
    for (std::string& file : files) file = file.starts_with("./") ? file.substr(2) : file;
  }
  return files;
}

}  // namespace

std::vector<std::string> expand_paths(const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  std::set<std::string> known;
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> found = expand(pattern);
    const bool absent = found.empty() || (found[0] == pattern && !store_of(pattern)->exists(pattern));
    if (absent) base::fail(base::ErrorCode::not_found, "no files at '", pattern, "'");
    for (const std::string& file : found) {
      if (known.insert(file).second) files.push_back(file);
    }
  }
  return files;
}

}  // namespace trireme::data
