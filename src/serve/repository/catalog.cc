// Looks up models in a catalog, with the errors that clients expect for those not present.
#include "serve/repository/catalog.h"

#include <algorithm>

#include "serve/repository/repository_files.h"

namespace trireme::serve {
namespace {

/// What is on its way in or out has no reason but its state.
std::string why_not(const std::string& state, const std::string& reason) {
  return reason.empty() ? "it is " + state : reason;
}

}  // namespace

bool CatalogModel::serves() const {
  return std::any_of(versions.begin(), versions.end(),
                     [](const auto& v) { return v.second.model != nullptr; });
}

std::shared_ptr<ServedModel> Catalog::find(std::string_view name, std::string_view version) const {
  const auto at = models.find(name);
  if (at == models.end()) {
    base::fail(base::ErrorCode::not_found, "Request for unknown model: '", name, "' is not found");
  }
  const CatalogModel& model = at->second;
  if (!model.serves()) {
    const auto last = model.versions.rbegin();
    const std::string reason = last == model.versions.rend()
                                   ? why_not(model.state, model.reason)
                                   : why_not(last->second.state, last->second.reason);
    base::fail(model.is_unloaded ? base::ErrorCode::not_found : base::ErrorCode::unavailable,
               "Request for unknown model: '", name, "' has no available versions: ", reason);
  }
  if (version.empty()) {
    for (auto v = model.versions.rbegin(); v != model.versions.rend(); ++v) {
      if (v->second.model) return v->second.model;
    }
  }
  const auto v = model.versions.find(version_number(version));
  if (v == model.versions.end()) {
    base::fail(base::ErrorCode::not_found, "Request for unknown model: '", name, "' version ", version,
               " is not found");
  }
  if (!v->second.model) {
    base::fail(base::ErrorCode::unavailable, "Request for unknown model: '", name, "' version ", version,
               " is not at ready state: ", why_not(v->second.state, v->second.reason));
  }
  return v->second.model;
}

std::vector<std::string> Catalog::versions(std::string_view name) const {
  std::vector<std::string> list;
  const auto at = models.find(name);
  if (at == models.end()) return list;
  for (const auto& [number, version] : at->second.versions) {
    if (version.model) list.push_back(std::to_string(number));
  }
  return list;
}

std::vector<RepositoryEntry> Catalog::index() const {
  std::vector<RepositoryEntry> list;
  for (const auto& [name, model] : models) {
    for (const auto& [number, version] : model.versions) {
      list.push_back({name, std::to_string(number), version.state, version.reason});
    }
    if (model.versions.empty()) list.push_back({name, "", model.state, model.reason});
  }
  return list;
}

std::vector<std::shared_ptr<ServedModel>> Catalog::serving() const {
  std::vector<std::shared_ptr<ServedModel>> list;
  for (const auto& [name, model] : models) {
    for (const auto& [number, version] : model.versions) {
      if (version.model) list.push_back(version.model);
    }
  }
  return list;
}

}  // namespace trireme::serve
