// The content of a model's files.
#include "batch/models/model_files.h"

#include <filesystem>
#include <map>

#include "base/crc32c.h"
#include "base/files/directory.h"
#include "base/files/file.h"

namespace trireme::batch {
namespace {

namespace fs = std::filesystem;

/// Paths by the names that the content is told by.
using Files = std::map<std::string, std::string>;

void add_directory(const std::string& path, const std::string& prefix, Files& files) {
  std::error_code error;
  for (const std::string& name : base::names_in(path, error)) {
    const std::string file = path + "/" + name;
    if (name.starts_with('.')) continue;
    if (fs::is_regular_file(file, error)) {
      if (prefix.empty() || name.ends_with(".json")) files[prefix + name] = file;
    } else if (prefix.empty() && fs::is_directory(file, error)) {
      add_directory(file, name + "/", files);
    }
  }
}

}  // namespace

base::Json content_of_files(const std::string& path, const model::Model& model) {
  Files files;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    add_directory(path, "", files);
  } else if (fs::is_regular_file(path, error)) {
    files[fs::path(path).filename()] = path;
  }
  for (const auto& mapped : model.files) files[fs::path(mapped->path()).filename()] = mapped->path();
  base::Json list = base::Json::array();
  for (const auto& [name, file] : files) {
    const base::MappedFile bytes(file);
    list.push_back(base::Json::object({{"name", name},
                                       {"bytes", static_cast<int64_t>(bytes.size())},
                                       {"crc32c", static_cast<int64_t>(base::crc32c(bytes.bytes()))}}));
    bytes.release_pages();
  }
  return list;
}

}  // namespace trireme::batch
