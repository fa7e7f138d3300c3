// Decides which callers may use which routes.
#include "serve/access/access.h"

#include <algorithm>

#include "base/error.h"
#include "base/files/file.h"
#include "http/message.h"
#include "serve/access/api_keys.h"

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

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

/// The words between commas, without empty ones.
std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    if (end > at) words.emplace_back(list.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

/// The part after the model's name (and version) in a path below /v2/models/.
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
  const bool computes =
      action == "infer" || action == "generate" || action == "generate_stream" || action == "pages";
  if (computes) return Category::inference;
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

bool is_control(Category category) {
  return category == Category::model_repository || category == Category::shared_memory ||
         category == Category::trace || category == Category::logging;
}

bool is_forwarded(const std::function<std::string_view(const std::string& header)>& header) {
  for (const char* name : {"forwarded", "x-forwarded-for", "x-real-ip", "via"}) {
    if (!header(name).empty()) return true;
  }
  return false;
}

AccessRules::AccessRules(const std::vector<std::string>& rules, const ApiKeys* keys)
    : keys_(keys != nullptr && keys->is_on() ? keys : nullptr) {
  Rules rest;
  for (const std::string& text : rules) add(text, rest);
  for (Rules& own : rules_) {
    const bool is_named = own.is_open || std::any_of(own.list.begin(), own.list.end(),
                                                     [](const Rule& r) { return r.models.empty(); });
    for (const Rule& rule : rest.list) {
      if (!is_named || !rule.models.empty()) own.list.push_back(rule);
    }
    own.is_open = own.is_open || (!is_named && rest.is_open);
  }
}

/// Adds one rule to its categories, or to `rest` if it names all.
void AccessRules::add(const std::string& text, Rules& rest) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view subject = std::string_view(text).substr(0, colon);
  const std::string_view demand = std::string_view(text).substr(std::min(colon + 1, text.size()));
  const size_t at_sign = std::min(subject.find('@'), subject.size()), equals = demand.find('=');
  const bool is_open = demand == "anyone";
  const bool has_secret = equals != std::string_view::npos && equals > 0 && equals + 1 < demand.size();
  base::require(
      colon < text.size() && (is_open || has_secret),
      "a rule of --restrict is category[,category][@model[,model]]:header=secret or category:anyone");
  Rule rule;
  if (at_sign < subject.size()) rule.models = words_of(subject.substr(at_sign + 1));
  base::require(!is_open || at_sign == subject.size(), "a rule of --restrict opens categories, not models");
  base::require(at_sign == subject.size() || !rule.models.empty(),
                "a rule of --restrict names no model after @");
  if (!is_open) {
    rule.header = demand.substr(0, equals);
    rule.secret = with_environment(demand.substr(equals + 1), "a rule of --restrict");
    std::transform(rule.header.begin(), rule.header.end(), rule.header.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  }
  const std::vector<std::string> categories = words_of(subject.substr(0, at_sign));
  base::require(!categories.empty(), "a rule of --restrict names no category");
  for (const std::string& name : categories) {
    Rules& to = name == "all" ? rest : rules_[index_of(name)];
    is_open ? static_cast<void>(to.is_open = true) : to.list.push_back(rule);
  }
}

Access AccessRules::verdict(Category category, const Rules& rules, const std::vector<const Rule*>& asked,
                            const Caller& caller) {
  if (asked.empty()) {
    const bool is_free = rules.is_open || caller.is_local || !is_control(category);
    return is_free ? Access::allowed : Access::only_here;
  }
  bool is_shown = false;
  for (const Rule* rule : asked)
    is_shown = same_secret(caller.header(rule->header), rule->secret) || is_shown;
  return is_shown ? Access::allowed : Access::needs_key;
}

/// Judges by the file of keys. An empty `model` means any model.
Access AccessRules::judge_key(std::string_view model, const Caller& caller) const {
  const std::shared_ptr<const ApiKey> key = keys_->find(caller.header("authorization"));
  if (key == nullptr || !(model.empty() || key->may_use(model))) return Access::needs_key;
  return key->has_quota && !caller.is_counted ? Access::is_not_counted : Access::allowed;
}

Access AccessRules::judge(Category category, std::string_view model, const Caller& caller) const {
  if (keys_ != nullptr && category == Category::inference) {
    const Access by_key = judge_key(model, caller);
    if (by_key != Access::needs_key || rules_[static_cast<size_t>(category)].list.empty()) return by_key;
  }
  const Rules& rules = rules_[static_cast<size_t>(category)];
  std::vector<const Rule*> own, general;
  for (const Rule& rule : rules.list) {
    const auto names = [&](const std::string& pattern) { return matches_model(pattern, model); };
    if (rule.models.empty()) general.push_back(&rule);
    if (!model.empty() && std::any_of(rule.models.begin(), rule.models.end(), names)) own.push_back(&rule);
  }
  return verdict(category, rules, own.empty() ? general : own, caller);
}

Access AccessRules::judge_before_reading(Category category, const Caller& caller) const {
  const Rules& rules = rules_[static_cast<size_t>(category)];
  const Access general = judge(category, {}, caller);
  std::vector<const Rule*> of_models;
  for (const Rule& rule : rules.list) {
    if (!rule.models.empty()) of_models.push_back(&rule);
  }
  const bool has_key = !of_models.empty() && verdict(category, rules, of_models, caller) == Access::allowed;
  return has_key ? Access::allowed : general;
}

std::string AccessRules::refusal(Category category, Access why) {
  if (why == Access::only_here) {
    return base::concat("restricted: ", name(category),
                        " calls from other machines need a key, and the server was started without one "
                        "(--restrict ",
                        name(category), ":header=secret)");
  }
  if (why == Access::is_not_counted)
    return "restricted: requests with a key that has a quota go through the OpenAI API, where they are "
           "counted";
  return base::concat("restricted: ", name(category),
                      " calls need the header that the server was started with");
}

std::string_view AccessRules::name(Category category) { return kNames[static_cast<size_t>(category)]; }

Category category_of_path(std::string_view path) {
  // Normalises as the router does: a route must not be open under another spelling of its path.
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  constexpr std::string_view kModels = "/v2/models/";
  if (path == "/health" || path == "/ping") return Category::health;
  if (path == "/v1/load_lora_adapter" || path == "/v1/unload_lora_adapter") return Category::model_repository;
  const bool is_openai = starts_with(path, "/v1/") || path == "/tokenize" || path == "/detokenize" ||
                         path == "/rerank" || path == "/v2/rerank" || path == "/score";
  if (is_openai && !starts_with(path, "/v1/models")) return Category::inference;
  if (path == "/metrics" || path == "/" || path == "/v2/models/stats") return Category::statistics;
  if (starts_with(path, kModels)) return category_of_action(action_of(path.substr(kModels.size())));
  if (starts_with(path, "/v2/health")) return Category::health;
  if (starts_with(path, "/v2/repository")) return Category::model_repository;
  if (starts_with(path, "/v2/systemsharedmemory") || starts_with(path, "/v2/cudasharedmemory"))
    return Category::shared_memory;
  if (starts_with(path, "/v2/logging")) return Category::logging;
  return starts_with(path, "/v2/trace") ? Category::trace : Category::metadata;
}

std::string model_of_path(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  constexpr std::string_view kModels = "/v2/models/", kControl = "/v2/repository/models/";
  if (path == "/v2/models/stats") return {};
  if (starts_with(path, kControl)) {
    const std::string_view rest = path.substr(kControl.size());
    return http::percent_decode(rest.substr(0, std::min(rest.rfind('/'), rest.size())));
  }
  if (!starts_with(path, kModels)) return {};
  const std::string_view rest = path.substr(kModels.size());
  return http::percent_decode(rest.substr(0, std::min(rest.find('/'), rest.size())));
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
