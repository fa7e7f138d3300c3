// The model repository: finds models and versions, loads them, keeps going past broken ones.
#include "serve/repository.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/file.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;

/// The number of a version directory, or 0: digits only, above 0, no leading zero.
int64_t version_number(const std::string& name) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number =
      error == std::errc() && end == name.data() + name.size() && name[0] != '0' && name[0] != '-';
  return is_number && number > 0 ? number : 0;
}

bool holds_model(const fs::path& dir) {
  std::error_code none;
  return fs::exists(dir / "model.onnx", none) || fs::exists(dir / "config.json", none);
}

/// Version number -> directory, of all that are there.
std::map<int64_t, std::string> find_versions(const std::string& root) {
  std::map<int64_t, std::string> found;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    const int64_t number = version_number(name);
    if (number > 0 && entry.is_directory()) found[number] = base::safe_join(root, name);
  }
  if (found.empty() && holds_model(root)) found[1] = root;
  return found;
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

}  // namespace

Repository::Repository(const ServeOptions& options, const base::Env& env, MetricRegistry& metrics)
    : options_(options), env_(env), metrics_(metrics) {}

void Repository::load() {
  const std::string& root = options_.model_repository;
  if (!fs::is_directory(root)) base::fail(base::ErrorCode::not_found, "no model repository at '", root, "'");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (name[0] != '.' && entry.is_directory()) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    Versions versions;
    try {
      load_model(name, versions);
    } catch (const std::exception& e) {
      broken_[name] = e.what();
      env_.log.error("serve", "model_failed", {{"model", name}, {"reason", e.what()}});
    }
    if (!versions.empty()) models_[name] = std::move(versions);
  }
}

void Repository::load_model(const std::string& name, Versions& versions) {
  ModelSource source{.name = name, .root = base::safe_join(options_.model_repository, name)};
  source.config = read_config(source.root, name);
  auto found = find_versions(source.root);
  apply_policy(source.config.versions, found);
  base::require(!found.empty(), "no version: want ", name, "/1/model.onnx, ", name,
                "/model.onnx or an encoder's config.json and model.safetensors");
  for (const auto& [number, path] : found) {
    source.version = std::to_string(number);
    source.path = path;
    versions[number] = load_version(source);
  }
}

Repository::Version Repository::load_version(const ModelSource& source) {
  const int64_t start = env_.clock.now_ns();
  Version version;
  try {
    version.model = std::make_shared<ServedModel>(source, options_, env_, metrics_);
    const double seconds = static_cast<double>(env_.clock.now_ns() - start) * 1e-9;
    metrics_
        .gauge("nv_model_load_duration_secs", "Duration of the last load in seconds",
               {{"model", source.name}, {"version", source.version}})
        .set(seconds);
    env_.log.info("serve", "model_ready",
                  {{"model", source.name},
                   {"version", source.version},
                   {"max_batch_size", version.model->config().max_batch_size.value_or(0)},
                   {"instances", version.model->config().instances},
                   {"seconds", seconds}});
  } catch (const std::exception& e) {
    version.reason = e.what();
    env_.log.error("serve", "model_failed",
                   {{"model", source.name}, {"version", source.version}, {"reason", e.what()}});
  }
  return version;
}

std::shared_ptr<ServedModel> Repository::find(std::string_view name, std::string_view version) const {
  const auto broken = broken_.find(name);
  if (broken != broken_.end()) {
    base::fail(base::ErrorCode::unavailable, "Request for unknown model: '", name,
               "' has no available versions: ", broken->second);
  }
  const auto at = models_.find(name);
  if (at == models_.end()) {
    base::fail(base::ErrorCode::not_found, "Request for unknown model: '", name, "' is not found");
  }
  const Versions& versions = at->second;
  if (version.empty()) {
    for (auto v = versions.rbegin(); v != versions.rend(); ++v) {
      if (v->second.model) return v->second.model;
    }
    base::fail(base::ErrorCode::unavailable, "Request for unknown model: '", name,
               "' has no available versions: ", versions.rbegin()->second.reason);
  }
  const auto v = versions.find(version_number(std::string(version)));
  if (v == versions.end()) {
    base::fail(base::ErrorCode::not_found, "Request for unknown model: '", name, "' version ", version,
               " is not found");
  }
  if (!v->second.model) {
    base::fail(base::ErrorCode::unavailable, "Request for unknown model: '", name, "' version ", version,
               " is not at ready state: ", v->second.reason);
  }
  return v->second.model;
}

std::vector<std::string> Repository::versions(std::string_view name) const {
  std::vector<std::string> list;
  const auto at = models_.find(name);
  if (at == models_.end()) return list;
  for (const auto& [number, version] : at->second) {
    if (version.model) list.push_back(std::to_string(number));
  }
  return list;
}

std::vector<RepositoryEntry> Repository::index() const {
  std::vector<RepositoryEntry> list;
  for (const auto& [name, versions] : models_) {
    for (const auto& [number, version] : versions) {
      list.push_back({name, std::to_string(number), version.model ? "READY" : "UNAVAILABLE", version.reason});
    }
  }
  for (const auto& [name, reason] : broken_) list.push_back({name, "", "UNAVAILABLE", reason});
  return list;
}

std::vector<std::shared_ptr<ServedModel>> Repository::models() const {
  std::vector<std::shared_ptr<ServedModel>> list;
  for (const auto& [name, versions] : models_) {
    for (const auto& [number, version] : versions) {
      if (version.model) list.push_back(version.model);
    }
  }
  return list;
}

bool Repository::has_failures() const {
  for (const RepositoryEntry& entry : index()) {
    if (entry.state != "READY") return true;
  }
  return false;
}

void Repository::drain() {
  for (const auto& model : models()) model->drain();
}

}  // namespace trireme::serve
