// The directories of a model repository.
#include "serve/repository_files.h"

#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/file.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;

bool holds_model(const fs::path& dir) {
  std::error_code none;
  return fs::exists(dir / "model.onnx", none) || fs::exists(dir / "config.json", none);
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
    if (!fs::is_directory(root))
      base::fail(base::ErrorCode::not_found, "no model repository at '", root, "'");
    for (const auto& entry : fs::directory_iterator(root)) {
      const std::string name = entry.path().filename().string();
      if (name[0] != '.' && entry.is_directory()) names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::vector<std::string> model_homes(const std::vector<std::string>& roots, const std::string& name) {
  std::vector<std::string> homes;
  for (const std::string& root : roots) {
    if (fs::is_directory(root + "/" + name)) homes.push_back(base::safe_join(root, name));
  }
  return homes;
}

void check_model_name(std::string_view name) {
  base::require(!name.empty(), "Model name cannot be empty");
  base::require(name[0] != '.' && name.find_first_of("/\\") == std::string_view::npos, "model name '", name,
                "' must not contain path traversal characters");
}

ModelConfig read_config(const std::string& root, const std::string& name) {
  const std::string file = root + "/config.pbtxt";
  if (!base::file_exists(file)) return {};
  try {
    ModelConfig config =
        parse_model_config(base::read_file(base::safe_join(root, "config.pbtxt"), size_t{4} << 20));
    base::require(config.name.empty() || config.name == name, "name '", config.name,
                  "' is not that of the directory, '", name, "'");
    return config;
  } catch (const base::Error& e) {
    throw e.with("config.pbtxt");
  }
}

std::shared_ptr<const std::string> write_override(const LoadOverride& load) {
  std::string path = (fs::temp_directory_path() / "trireme-load-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr)
    base::fail(base::ErrorCode::unavailable, "cannot make a directory for the files of the load request");
  std::shared_ptr<const std::string> root(new std::string(path), [](const std::string* p) {
    std::error_code error;  // nobody left to tell
    fs::remove_all(*p, error);
    delete p;
  });
  for (const auto& [name, contents] : load.files) {
    const fs::path relative(name);
    bool is_inside = !relative.empty() && relative.is_relative();
    for (const fs::path& part : relative)
      is_inside = is_inside && part != ".." && part != "." && !part.empty();
    base::require(is_inside, "load failed: file '", name, "' must not contain path traversal characters");
    try {
      fs::create_directories(fs::path(*root) / relative.parent_path());
      base::write_file_atomic(*root + "/" + name, contents);
    } catch (const std::exception& e) {  // a name too long, a full disk
      base::fail(base::ErrorCode::internal, "failed to poll from model repository: file '",
                 name.substr(0, 120), "' cannot be written: ", std::string_view(e.what()).substr(0, 400));
    }
  }
  return root;
}

std::map<int64_t, std::string> served_versions(const std::string& root, const ModelConfig& config,
                                               const OtherModels& others) {
  std::map<int64_t, std::string> found;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    const int64_t number = version_number(name);
    if (number > 0 && entry.is_directory()) found[number] = base::safe_join(root, name);
  }
  const std::string& file = config.default_model_filename;
  const bool has_file = !file.empty() && base::file_exists(root + "/" + file);
  if (found.empty() && (config.ensemble || has_file || holds_model(root) || others.has(root)))
    found[1] = root;
  apply_policy(config.versions, found);
  if (!file.empty()) {
    for (auto& [number, path] : found) path = base::safe_join(path, file);
  }
  base::require(
      !found.empty(),
      "no version: want <model>/1/model.onnx, <model>/model.onnx, an encoder's config.json and "
      "model.safetensors or a run's checkpoints/latest, and a version_policy that lets one of them serve");
  return found;
}

std::string files_fingerprint(const std::string& root, const OtherModels& others) {
  if (others.has(root)) return others.fingerprint(root);
  std::vector<std::string> lines;
  std::error_code error;  // files come and go while we look; the next look sees them
  const auto options = fs::directory_options::follow_directory_symlink;
  for (fs::recursive_directory_iterator at(root, options, error), end; at != end; at.increment(error)) {
    std::error_code unread;
    const auto size = at->is_regular_file(unread) ? at->file_size(unread) : 0;
    const auto time = at->last_write_time(unread).time_since_epoch().count();
    lines.push_back(at->path().string() + '|' + std::to_string(size) + '|' + std::to_string(time) + '\n');
    if (error) break;
  }
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

}  // namespace trireme::serve
