// Requests of the OpenAI API for texts.
#include "serve/openai/completion_request.h"

#include <algorithm>
#include <cmath>

#include "serve/infer/request_json.h"
#include "serve/openai/openai_error.h"

namespace trireme::serve {
namespace {

using base::ErrorCode;
using base::Json;

constexpr int64_t kMostChoices = 128;
constexpr size_t kMostStops = 16;
constexpr int64_t kMostPrompts = 2048, kMostAnswers = 2048;

[[noreturn]] void fail(std::string_view member, const std::string& what) {
  throw MemberError(ErrorCode::invalid_argument, std::string(member), what);
}

[[noreturn]] void refuse(std::string_view member, const std::string& what) {
  throw MemberError(ErrorCode::unsupported, std::string(member), what);
}

/// The members of one request; absent and null are the same.
class Members {
 public:
  explicit Members(const Json& json) : json_(json) {}

  const Json* find(std::string_view name) const {
    const Json* member = json_.find(name);
    return member == nullptr || member->is_null() ? nullptr : member;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  bool flag(std::string_view name, bool otherwise = false) const {
    const Json* m = find(name);
    if (m == nullptr) return otherwise;
    if (!m->is_bool()) fail(name, base::concat("expected a boolean, found ", m->type_name()));
    return m->as_bool();
  }
  std::string text(std::string_view name) const {
    const Json* m = find(name);
    if (m == nullptr) return {};
    if (!m->is_string()) fail(name, base::concat("expected a string, found ", m->type_name()));
    return m->as_string();
  }
  double number(std::string_view name, double otherwise, double low, double high) const {
    const Json* m = find(name);
    if (m == nullptr) return otherwise;
    if (!m->is_number()) fail(name, base::concat("expected a number, found ", m->type_name()));
    const double value = m->as_double();
    if (!(value >= low && value <= high))
      fail(name, base::concat(value, " is not between ", low, " and ", high));
    return value;
  }
  int64_t integer(std::string_view name, int64_t otherwise, int64_t low, int64_t high) const {
    const Json* m = find(name);
    if (m == nullptr) return otherwise;
    if (!m->is_integer()) fail(name, base::concat("expected an integer, found ", m->type_name()));
    if (std::holds_alternative<uint64_t>(m->value())) fail(name, "the integer is too large");
    const int64_t value = m->as_int();
    if (value < low || value > high) fail(name, base::concat(value, " is not between ", low, " and ", high));
    return value;
  }

 private:
  const Json& json_;
};

std::vector<int64_t> tokens_of(std::string_view member, const Json& list) {
  std::vector<int64_t> tokens;
  tokens.reserve(list.size());
  for (const Json& token : list.as_array()) {
    if (!token.is_integer() || std::holds_alternative<uint64_t>(token.value()))
      fail(member, "a list of tokens holds integers only");
    tokens.push_back(token.as_int());
  }
  return tokens;
}

/// A string, a list of strings, a list of tokens or a list of those.
std::vector<Prompt> prompts_of(std::string_view member, const Json& given) {
  if (given.is_string()) return {given.as_string()};
  if (!given.is_array() || given.size() == 0) fail(member, "expected a string or a list that is not empty");
  const base::JsonArray& list = given.as_array();
  if (list[0].is_integer()) return {tokens_of(member, given)};
  if (list.size() > kMostPrompts) fail(member, base::concat("more than ", kMostPrompts, " prompts"));
  std::vector<Prompt> prompts;
  for (const Json& one : list) {
    if (one.is_string()) {
      prompts.emplace_back(one.as_string());
    } else if (one.is_array()) {
      prompts.emplace_back(tokens_of(member, one));
    } else {
      fail(member, base::concat("expected strings or lists of tokens, found ", one.type_name()));
    }
  }
  return prompts;
}

void read_stops(const Members& m, TextAsk& ask) {
  if (const Json* stop = m.find("stop")) {
    const base::JsonArray list = stop->is_array() ? stop->as_array() : base::JsonArray{*stop};
    if (list.size() > kMostStops) fail("stop", base::concat("more than ", kMostStops, " texts"));
    for (const Json& text : list) {
      if (!text.is_string()) fail("stop", "expected a string or a list of strings");
      ask.stop.push_back(text.as_string());
    }
  }
  if (const Json* tokens = m.find("stop_token_ids")) {
    if (!tokens->is_array()) fail("stop_token_ids", "expected a list of tokens");
    ask.generate.stop = tokens_of("stop_token_ids", *tokens);
  }
}

void read_sampling(const Members& m, engine::SamplingOptions& s, int64_t seed) {
  constexpr double kAny = 1e6;
  s.temperature = m.number("temperature", 1, 0, 2);
  s.top_p = m.number("top_p", 1, 0, 1);
  s.top_k = std::max<int64_t>(0, m.integer("top_k", 0, -1, INT32_MAX));
  s.min_p = m.number("min_p", 0, 0, 1);
  s.frequency_penalty = m.number("frequency_penalty", 0, -2, 2);
  s.presence_penalty = m.number("presence_penalty", 0, -2, 2);
  s.repetition_penalty = m.number("repetition_penalty", 1, 1e-3, kAny);
  s.seed = m.integer("seed", seed, INT64_MIN, INT64_MAX);
}

/// Members that would change an answer and are not served are refused, so that nobody takes one for what he
/// asked for.
void refuse_others(const Members& m) {
  const Json* bias = m.find("logit_bias");
  if (bias != nullptr && bias->size() > 0) refuse("logit_bias", "is not served");
  for (const char* name : {"suffix", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
                           "guided_grammar", "prompt_logprobs", "min_tokens"}) {
    if (m.has(name)) refuse(name, "is not served");
  }
  if (const Json* format = m.find("response_format")) {
    const Json* type = format->find("type");
    if (type == nullptr || !type->is_string()) fail("response_format", "has no type");
    if (type->as_string() != "text") refuse("response_format", "only text is served");
  }
}

CompletionRequest common(const Members& m, int64_t seed) {
  CompletionRequest r;
  r.model = m.text("model");
  if (r.model.empty()) fail("model", "is missing");
  r.choices = m.integer("n", 1, 1, kMostChoices);
  r.streams = m.flag("stream");
  if (const Json* options = m.find("stream_options")) {
    if (!r.streams) fail("stream_options", "is only for streams");
    const Members of(*options);
    r.wants_usage = of.flag("include_usage");
    r.wants_usage_always = r.wants_usage && of.flag("continuous_usage_stats");
  }
  r.ask.ignores_end = m.flag("ignore_eos");
  r.ask.priority = static_cast<uint64_t>(m.integer("priority", 0, 0, INT32_MAX));
  read_stops(m, r.ask);
  read_sampling(m, r.ask.generate.sampling, seed);
  refuse_others(m);
  return r;
}

/// Clients send a call's arguments as text, templates write them as an object.
void open_arguments(Json& call) {
  Json* function = call.find("function");
  Json* arguments = function == nullptr ? nullptr : function->find("arguments");
  if (arguments == nullptr || !arguments->is_string()) return;
  try {
    Json object = base::parse_json(arguments->as_string());
    if (object.is_object()) *arguments = std::move(object);
  } catch (const base::Error& e) {
    fail("messages", "the arguments of a call are no JSON: " + e.message());
  }
}

/// A message as templates take it: its content one text, which clients also send in parts.
Json message_of(const Json& given) {
  const Json* role = given.find("role");
  if (role == nullptr || !role->is_string()) fail("messages", "each is an object with a role");
  Json message = given;
  if (role->as_string() == "developer") message.set("role", "system");  // the newer name of the same
  if (Json* calls = message.find("tool_calls"); calls != nullptr && calls->is_array()) {
    for (Json& call : calls->as_array()) open_arguments(call);
  }
  const Json* content = given.find("content");
  if (content == nullptr || content->is_null() || content->is_string()) return message;
  if (!content->is_array()) fail("messages", "content is a text or a list of parts");
  std::string text;
  for (const Json& part : content->as_array()) {
    const Json* type = part.find("type");
    const Json* words = part.find("text");
    if (type == nullptr || *type != Json("text") || words == nullptr || !words->is_string())
      fail("messages", "parts of a content other than text are not served");
    text += (text.empty() ? "" : "\n") + words->as_string();
  }
  message.set("content", std::move(text));
  return message;
}

/// Tools go to the template; what calls them is found in the answer. An answer is not forced to call one.
void read_tools(const Members& m, CompletionRequest& r) {
  const Json* choice = m.find("tool_choice");
  const bool is_word = choice != nullptr && choice->is_string();
  const std::string word = is_word ? choice->as_string() : "auto";
  if (choice != nullptr && (!is_word || (word != "auto" && word != "none")))
    refuse("tool_choice", "only none and auto are served");
  const Json* tools = m.find("tools");
  if (tools == nullptr || word == "none") return;
  if (!tools->is_array()) fail("tools", "expected a list");
  for (const Json& tool : tools->as_array()) {
    const Json* function = tool.find("function");
    const Json* name = function == nullptr ? nullptr : function->find("name");
    if (name == nullptr || !name->is_string()) fail("tools", "each is a function with a name");
  }
  if (tools->size() == 0) return;
  r.chat.tools = *tools;
  r.finds_calls = true;
  r.calls_once = !m.flag("parallel_tool_calls", true);
}

void set_most_tokens(CompletionRequest& r, const Members& m, std::string_view name) {
  if (!m.has(name)) return;
  r.ask.generate.max_tokens = m.integer(name, 0, 1, INT32_MAX);
  r.has_most_tokens = true;
}

Json object_of(std::string_view body) {
  Json json = request_json(body);
  base::require(json.is_object(), "expected a JSON object, found ", json.type_name());
  return json;
}

}  // namespace

CompletionRequest completion_request(std::string_view body, int64_t seed) {
  constexpr int64_t kUsualTokens = 16;
  const Json json = object_of(body);
  const Members m(json);
  CompletionRequest r = common(m, seed);
  const Json* prompt = m.find("prompt");
  if (prompt == nullptr) fail("prompt", "is missing");
  r.prompts = prompts_of("prompt", *prompt);
  r.ask.generate.max_tokens = kUsualTokens;
  r.has_most_tokens = true;
  set_most_tokens(r, m, "max_tokens");
  r.best_of = m.integer("best_of", r.choices, 1, kMostChoices);
  if (r.best_of < r.choices) fail("best_of", "is less than n");
  if (r.best_of > r.choices && r.streams) fail("best_of", "above n cannot be streamed");
  if (static_cast<int64_t>(r.prompts.size()) * r.best_of > kMostAnswers)
    fail("n", base::concat("more than ", kMostAnswers, " answers to all prompts"));
  r.echoes = m.flag("echo");
  const int64_t best = m.integer("logprobs", -1, 0, 5);
  r.wants_log_probabilities = best >= 0;
  if (best > 1) refuse("logprobs", "above 1: only those of the tokens chosen are served");
  if (r.wants_log_probabilities && r.echoes) refuse("logprobs", "of prompts are not served");
  return r;
}

CompletionRequest chat_request(std::string_view body, int64_t seed) {
  const Json json = object_of(body);
  const Members m(json);
  CompletionRequest r = common(m, seed);
  r.is_chat = true;
  r.best_of = r.choices;
  const Json* messages = m.find("messages");
  if (messages == nullptr) fail("messages", "is missing");
  if (!messages->is_array() || messages->size() == 0) fail("messages", "expected a list that is not empty");
  r.chat.messages = Json::array();
  for (const Json& message : messages->as_array()) r.chat.messages.push_back(message_of(message));
  set_most_tokens(r, m, "max_tokens");
  set_most_tokens(r, m, "max_completion_tokens");
  data::ChatOptions& options = r.chat.options;
  options.continue_final_message = m.flag("continue_final_message");
  options.add_generation_prompt = m.flag("add_generation_prompt", !options.continue_final_message);
  if (options.continue_final_message && options.add_generation_prompt)
    fail("continue_final_message", "excludes add_generation_prompt");
  if (const Json* variables = m.find("chat_template_kwargs")) {
    if (!variables->is_object()) fail("chat_template_kwargs", "expected an object");
    options.variables = *variables;
  }
  r.wants_log_probabilities = m.flag("logprobs");
  const int64_t best = m.integer("top_logprobs", 0, 0, 20);
  if (best > 0 && !r.wants_log_probabilities) fail("top_logprobs", "needs logprobs");
  if (best > 1) refuse("top_logprobs", "above 1: only those of the tokens chosen are served");
  read_tools(m, r);
  return r;
}

}  // namespace trireme::serve
