// Which callers may use which routes.
#include "serve/access.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"

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

/// The secret with every ${NAME} replaced. Never in a message: logs are read by more people than secrets.
std::string with_environment(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t start = text.find("${"), end = text.find('}', std::min(start, text.size()));
    if (end == std::string_view::npos) break;
    out += text.substr(0, start);
    const std::string name(text.substr(start + 2, end - start - 2));
    const char* value = std::getenv(name.c_str());
    base::require(value != nullptr && *value != '\0', "a rule of --restrict needs the environment variable ",
                  name, ", which is not set");
    out += value;
    text.remove_prefix(end + 1);
  }
  return out.append(text);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

/// What follows the model's name (and version) in a path below /v2/models/.
std::string_view action_of(std::string_view rest) {
  constexpr std::string_view kVersions = "/versions/";
  rest.remove_prefix(std::min(rest.find('/'), rest.size()));
  if (starts_with(rest, kVersions)) {
    rest.remove_prefix(kVersions.size());
    rest.remove_prefix(std::min(rest.find('/'), rest.size()));
  }
  return rest.substr(rest.empty() ? 0 : 1);
}

Category category_of_action(std::string_view action) {
  if (action == "infer" || action == "generate" || action == "generate_stream") return Category::inference;
  if (action == "ready") return Category::health;
  if (action == "config") return Category::model_config;
  if (action == "stats") return Category::statistics;
  return action == "trace/setting" ? Category::trace : Category::metadata;
}

}  // namespace

std::vector<std::string> access_rules(std::vector<std::string> rules, const std::string& file) {
  if (file.empty()) return rules;
  const std::string text = base::read_file(file, size_t{1} << 20);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = trimmed(std::string_view(text).substr(at, end - at));
    if (!line.empty() && line.front() != '#') rules.emplace_back(line);
    at = end + 1;
  }
  base::require(!rules.empty(), "the file of --restrict-file has no rule: ", file);
  return rules;
}

AccessRules::AccessRules(const std::vector<std::string>& rules) : has_any_(!rules.empty()) {
  std::vector<Rule> rest;
  for (const std::string& text : rules) {
    const size_t colon = text.find(':'), equals = text.find('=', colon == std::string::npos ? 0 : colon);
    base::require(colon != std::string::npos && equals != std::string::npos && equals > colon + 1 &&
                      equals + 1 < text.size(),
                  "a rule of --restrict is category[,category]:header=secret");
    Rule rule{text.substr(colon + 1, equals - colon - 1), with_environment(text.substr(equals + 1))};
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
  // As the router: what it serves under a path must not be open under another spelling of it.
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  constexpr std::string_view kModels = "/v2/models/";
  if (path == "/metrics" || path == "/" || path == "/v2/models/stats") return Category::statistics;
  if (starts_with(path, kModels)) return category_of_action(action_of(path.substr(kModels.size())));
  if (starts_with(path, "/v2/health")) return Category::health;
  if (starts_with(path, "/v2/repository")) return Category::model_repository;
  if (starts_with(path, "/v2/systemsharedmemory") || starts_with(path, "/v2/cudasharedmemory"))
    return Category::shared_memory;
  if (starts_with(path, "/v2/logging")) return Category::logging;
  return starts_with(path, "/v2/trace") ? Category::trace : Category::metadata;
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
