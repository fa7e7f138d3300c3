// Which callers may use which routes.
#include "serve/access.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::serve {
namespace {

constexpr std::string_view kNames[kCategories] = {"health",        "metadata",     "inference",
                                                  "shared-memory", "model-config", "model-repository",
                                                  "statistics",    "trace",        "logging"};

size_t index_of(std::string_view name) {
  const auto at = std::find(std::begin(kNames), std::end(kNames), name);
  base::require(
      at != std::end(kNames), "unknown category '", name,
      "' in --restrict: health, metadata, inference, shared-memory, model-config, model-repository, "
      "statistics, trace, logging or all");
  return static_cast<size_t>(at - std::begin(kNames));
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

/// Looks at every byte of the secret whatever was given.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < secret.size(); ++i) {
    const char c = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned char>(c) ^ static_cast<unsigned char>(secret[i]);
  }
  return difference == 0;
}

}  // namespace

AccessRules::AccessRules(const std::vector<std::string>& rules) : has_any_(!rules.empty()) {
  std::vector<Rule> rest;
  for (const std::string& text : rules) {
    const size_t colon = text.find(':'), equals = text.find('=', colon == std::string::npos ? 0 : colon);
    base::require(colon != std::string::npos && equals != std::string::npos && equals > colon + 1 &&
                      equals + 1 < text.size(),
                  "a rule of --restrict is category[,category]:header=secret");
    Rule rule{text.substr(colon + 1, equals - colon - 1), text.substr(equals + 1)};
    std::transform(rule.header.begin(), rule.header.end(), rule.header.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    for (size_t at = 0; at < colon;) {
      const size_t end = std::min(text.find(',', at), colon);
      const std::string_view name = std::string_view(text).substr(at, end - at);
      (name == "all" ? rest : rules_[index_of(name)]).push_back(rule);
      at = end + 1;
    }
  }
  for (auto& list : rules_) {
    if (list.empty()) list = rest;
  }
}

bool AccessRules::allows(Category category, const Lookup& header) const {
  const std::vector<Rule>& list = rules_[static_cast<size_t>(category)];
  bool is_allowed = list.empty();
  for (const Rule& rule : list) is_allowed = same_secret(header(rule.header), rule.secret) || is_allowed;
  return is_allowed;
}

std::string_view AccessRules::name(Category category) { return kNames[static_cast<size_t>(category)]; }

Category category_of_path(std::string_view path) {
  if (path == "/metrics" || path == "/" || ends_with(path, "/stats")) return Category::statistics;
  if (starts_with(path, "/v2/health")) return Category::health;
  if (starts_with(path, "/v2/repository")) return Category::model_repository;
  if (starts_with(path, "/v2/systemsharedmemory") || starts_with(path, "/v2/cudasharedmemory"))
    return Category::shared_memory;
  if (starts_with(path, "/v2/logging")) return Category::logging;
  if (ends_with(path, "/trace/setting")) return Category::trace;
  if (ends_with(path, "/infer") || ends_with(path, "/generate") || ends_with(path, "/generate_stream"))
    return Category::inference;
  if (ends_with(path, "/ready")) return Category::health;
  return ends_with(path, "/config") ? Category::model_config : Category::metadata;
}

Category category_of_call(std::string_view call) {
  if (call == "ModelInfer" || call == "ModelStreamInfer") return Category::inference;
  if (call == "ServerLive" || call == "ServerReady" || call == "ModelReady") return Category::health;
  if (call == "ModelConfig") return Category::model_config;
  if (call == "ModelStatistics") return Category::statistics;
  if (call == "TraceSetting") return Category::trace;
  if (call == "LogSettings") return Category::logging;
  if (starts_with(call, "Repository")) return Category::model_repository;
  return call.find("SharedMemory") != std::string_view::npos ? Category::shared_memory : Category::metadata;
}

}  // namespace trireme::serve
