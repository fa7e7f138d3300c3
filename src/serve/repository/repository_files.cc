// Reads the directories of a model repository.
#include "serve/repository/repository_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "base/files/directory.h"
#include "base/files/file.h"
#include "base/files/scratch.h"
#include "serve/models/model_file.h"
#include "serve/config/regular_file.h"

namespace trireme::serve {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\f\v";

namespace fs = std::filesystem;

bool holds_model(const fs::path& dir) {
  std::error_code none;
  return fs::exists(dir / "model.onnx", none) || fs::exists(dir / "config.json", none) ||
         !gguf_file_of(dir.string()).empty();
}

void apply_policy(const VersionPolicy& policy, std::map<int64_t, std::string>& versions) {
  if (policy.kind == VersionPolicy::Kind::latest) {
    while (static_cast<int64_t>(versions.size()) > std::max<int64_t>(1, policy.latest))
      versions.erase(versions.begin());
  } else if (policy.kind == VersionPolicy::Kind::specific) {
    std::erase_if(versions, [&](const auto& v) {
      return std::find(policy.versions.begin(), policy.versions.end(), v.first) == policy.versions.end();
    });
  }
}

std::string numbers_of(const std::map<int64_t, std::string>& versions) {
  std::string text;
  for (const auto& [number, path] : versions) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

/// Adds a line for each file below `root`. Files may change meanwhile; the next check will see that.
void add_files(const std::string& root, std::set<std::string>& seen, std::vector<std::string>& lines) {
  std::error_code unread;
  for (const std::string& name : base::names_in(root, unread)) {
    const fs::path path = root + "/" + name;
    const auto size = fs::is_regular_file(path, unread) ? fs::file_size(path, unread) : 0;
    const auto time = fs::last_write_time(path, unread).time_since_epoch().count();
    lines.push_back(path.string() + '|' + std::to_string(size) + '|' + std::to_string(time) + '\n');
    if (!fs::is_directory(path, unread)) continue;
    const bool is_link = fs::is_symlink(path, unread);  // links may form cycles
    if (!is_link || seen.insert(fs::canonical(path, unread).string()).second)
      add_files(path.string(), seen, lines);
  }
}

}  // namespace

int64_t version_number(std::string_view name) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number =
      error == std::errc() && end == name.data() + name.size() && name[0] != '0' && name[0] != '-';
  return is_number && number > 0 ? number : 0;
}

std::vector<std::string> model_names(const std::vector<std::string>& roots) {
  std::vector<std::string> names;
  for (const std::string& root : roots) {
    std::error_code error;
    const std::vector<std::string> all = base::names_in(root, error);
    if (error) {
      base::fail(base::ErrorCode::not_found, "no model repository at '", root, "': ", error.message());
    }
    for (const std::string& name : all) {
      std::error_code none;
      if (name[0] != '.' && fs::is_directory(root + "/" + name, none)) names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::vector<std::string> model_homes(const std::vector<std::string>& roots, const std::string& name) {
  std::vector<std::string> homes;
  for (const std::string& root : roots) {
    std::error_code none;  // errors count as absence
    if (fs::is_directory(root + "/" + name, none)) homes.push_back(root + "/" + name);
  }
  return homes;
}

bool stays_inside(std::string_view model_name) {
  const size_t first = model_name.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return false;
  const std::string_view words = model_name.substr(first, model_name.find_last_not_of(kBlanks) + 1 - first);
  constexpr std::string_view kBreaks("/\\\0", 3);
  return words != "." && words != ".." && model_name.find_first_of(kBreaks) == std::string_view::npos;
}

void check_model_name(std::string_view name) {
  base::require(name.find_first_not_of(kBlanks) != std::string_view::npos,
                "Model name cannot be empty. Please enter a valid name to deploy.");
  base::require(stays_inside(name), "model name must not contain path traversal characters: '", name, "'");
}

ModelConfig read_config(const std::string& root, const std::string& name) {
  const std::string file = root + "/config.pbtxt";
  std::error_code none;
  const bool is_link = fs::is_symlink(file, none);  // a broken link is not an absent configuration
  if (!is_link && !base::file_exists(file)) return {};
  try {
    ModelConfig config = parse_model_config(read_regular_file(file, size_t{4} << 20));
    base::require(config.name.empty() || config.name == name, "name '", config.name,
                  "' is not that of the directory, '", name, "'");
    return config;
  } catch (const base::Error& e) {
    throw e.with("config.pbtxt");
  }
}

std::shared_ptr<const std::string> write_override(const LoadOverride& load) {
  const std::shared_ptr<const std::string> root = base::make_scratch(kOverridePrefix);
  for (const auto& [name, contents] : load.files) {
    const fs::path relative(name);
    bool is_inside = !relative.empty() && relative.is_relative();
    for (const fs::path& part : relative)
      is_inside = is_inside && part != ".." && part != "." && !part.empty();
    base::require(is_inside, "load failed: file '", name, "' must not contain path traversal characters");
    try {
      fs::create_directories(fs::path(*root) / relative.parent_path());
      base::write_file_atomic(*root + "/" + name, contents);
    } catch (const std::exception& e) {  // a name too long, or a full disk
      base::fail(base::ErrorCode::internal, "failed to poll from model repository: file '",
                 name.substr(0, 120), "' cannot be written: ", std::string_view(e.what()).substr(0, 400));
    }
  }
  return root;
}

std::map<int64_t, std::string> served_versions(const std::string& root, const ModelConfig& config,
                                               const OtherModels& others) {
  std::map<int64_t, std::string> found;
  std::error_code unread, none;
  for (const std::string& name : base::names_in(root, unread)) {
    const int64_t number = version_number(name);
    const fs::path path = fs::path(root) / name;
    if (number > 0 && fs::is_directory(path, none)) found[number] = path.string();
  }
  if (unread) base::fail(base::ErrorCode::not_found, "'", root, "' cannot be read: ", unread.message());
  const std::string& file = config.default_model_filename;
  const bool has_file = !file.empty() && base::file_exists(root + "/" + file);
  if (found.empty() && (config.ensemble || has_file || holds_model(root) || others.has(root)))
    found[1] = root;
  base::require(!found.empty(), "no version: want <model>/1/model.onnx, <model>/model.onnx, a config.json ",
                "with model.safetensors, one .gguf file or a run's checkpoints/latest; the directory holds ",
                list_directory(root));
  const std::string there = numbers_of(found);
  apply_policy(config.versions, found);
  base::require(!found.empty(), "version_policy.specific lets no version serve; there is ", there);
  if (!file.empty()) {
    for (auto& [number, path] : found) path = base::safe_join(path, file);
  }
  return found;
}

std::string files_fingerprint(const std::string& root, const OtherModels& others) {
  if (others.has(root)) return others.fingerprint(root);
  std::vector<std::string> lines;
  std::set<std::string> seen;
  add_files(root, seen, lines);
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

}  // namespace trireme::serve
