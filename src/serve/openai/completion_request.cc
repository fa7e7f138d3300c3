// Reads text completion requests of the OpenAI API.
#include "serve/openai/completion_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "serve/infer/request_json.h"
#include "serve/openai/members.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr int64_t kMostChoices = 128;
constexpr int64_t kMostPrompts = 2048, kMostAnswers = 2048;

std::vector<int64_t> tokens_of(std::string_view member, const Json& list) {
  std::vector<int64_t> tokens;
  tokens.reserve(list.size());
  for (const Json& token : list.as_array()) {
    if (!token.is_integer() || std::holds_alternative<uint64_t>(token.value()))
      fail_member(member, "a list of tokens holds integers only");
    tokens.push_back(token.as_int());
  }
  return tokens;
}

/// Reads a string, a list of strings, a list of tokens or a list of such lists.
std::vector<Prompt> prompts_of(std::string_view member, const Json& given) {
  if (given.is_string()) return {given.as_string()};
  if (!given.is_array() || given.size() == 0)
    fail_member(member, "expected a string or a list that is not empty");
  const base::JsonArray& list = given.as_array();
  if (list[0].is_integer()) return {tokens_of(member, given)};
  if (list.size() > kMostPrompts) fail_member(member, base::concat("more than ", kMostPrompts, " prompts"));
  std::vector<Prompt> prompts;
  for (const Json& one : list) {
    if (one.is_string()) {
      prompts.emplace_back(one.as_string());
    } else if (one.is_array()) {
      prompts.emplace_back(tokens_of(member, one));
    } else {
      fail_member(member, base::concat("expected strings or lists of tokens, found ", one.type_name()));
    }
  }
  return prompts;
}

void read_stops(const Members& m, TextAsk& ask) {
  if (const Json* stop = m.find("stop")) {
    const base::JsonArray list = stop->is_array() ? stop->as_array() : base::JsonArray{*stop};
    if (list.size() > kMostStops) fail_member("stop", base::concat("more than ", kMostStops, " texts"));
    for (const Json& text : list) {
      if (!text.is_string()) fail_member("stop", "expected a string or a list of strings");
      if (text.as_string().size() > kMostStopBytes)
        fail_member("stop", base::concat("a text of more than ", kMostStopBytes, " bytes"));
      ask.stop.push_back(text.as_string());
    }
  }
  if (const Json* tokens = m.find("stop_token_ids")) {
    if (!tokens->is_array()) fail_member("stop_token_ids", "expected a list of tokens");
    if (tokens->size() > kMostStopTokens)
      fail_member("stop_token_ids", base::concat("more than ", kMostStopTokens, " tokens"));
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

/// Reads {"token": bias}: biases that are added to the logits of tokens, given by their numbers.
void read_biases(const Members& m, engine::GenerateRequest& r) {
  constexpr double kMost = 100;
  const Json* given = m.find("logit_bias");
  if (given == nullptr) return;
  if (!given->is_object()) fail_member("logit_bias", "expected an object of tokens and numbers");
  if (given->size() > static_cast<size_t>(passes::kMostBiases))
    fail_member("logit_bias", base::concat("more than ", passes::kMostBiases, " tokens"));
  for (const auto& [key, value] : given->as_object()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || std::to_string(token) != key)
      fail_member("logit_bias", "'" + key.substr(0, 40) + "' is no number of a token");
    const bool is_bias = value.is_number() && std::abs(value.as_double()) <= kMost;
    if (!is_bias) fail_member("logit_bias", base::concat("expected numbers from ", -kMost, " to ", kMost));
    r.biases.push_back({token, static_cast<float>(value.as_double())});
  }
}

void refuse_unserved_of_chats(const Members& m) {
  for (const char* name : {"chat_template", "documents"}) {
    const Json* given = m.find(name);
    const bool is_empty = given != nullptr && given->is_array() && given->size() == 0;
    if (given != nullptr && !is_empty)
      refuse_member(name,
                    "is not served: the model's own template renders the messages, and reads "
                    "chat_template_kwargs");
  }
  for (const char* name : {"web_search_options", "audio"}) {
    if (m.has(name)) refuse_member(name, "is not served");
  }
  const Json* kinds = m.find("modalities");
  if (kinds != nullptr && *kinds != Json::array({"text"}))
    refuse_member("modalities", "other than text are not served");
}

/// Refuses members that would change an answer but are not supported, so that no client takes an answer for
/// what it asked for.
void refuse_unserved(const Members& m, bool is_chat) {
  for (const char* name :
       {"suffix", "prompt_logprobs", "guided_whitespace_pattern", "allowed_token_ids", "bad_words",
        "use_beam_search", "functions", "function_call", "truncate_prompt_tokens", "logits_processors"}) {
    const Json* given = m.find(name);
    const bool is_off = given != nullptr && given->is_bool() && !given->as_bool();
    if (given != nullptr && !is_off) refuse_member(name, "is not served");
  }
  if (is_chat) refuse_unserved_of_chats(m);
  // Of these one value is served, which is the default. The template of a chat writes the special tokens.
  const std::pair<const char*, bool> only[] = {
      {"include_stop_str_in_output", false}, {"skip_special_tokens", true}, {"add_special_tokens", !is_chat}};
  for (const auto& [name, value] : only) {
    if (m.flag(name, value) != value)
      refuse_member(name, value ? "false is not served" : "true is not served");
  }
}

CompletionRequest common(const Members& m, int64_t seed, bool is_chat) {
  CompletionRequest r;
  r.is_chat = is_chat;
  r.model = m.text("model");
  if (r.model.empty()) fail_member("model", "is missing");
  r.choices = m.integer("n", 1, 1, kMostChoices);
  r.streams = m.flag("stream");
  if (const Json* options = m.find("stream_options")) {
    if (!r.streams) fail_member("stream_options", "is only for streams");
    if (!options->is_object()) fail_member("stream_options", "expected an object");
    const Members of(*options);
    r.wants_usage = of.flag("include_usage");
    r.wants_usage_always = r.wants_usage && of.flag("continuous_usage_stats");
  }
  r.ask.ignores_end = m.flag("ignore_eos");
  r.ask.priority = static_cast<uint64_t>(m.integer("priority", 0, 0, INT32_MAX));
  read_stops(m, r.ask);
  read_sampling(m, r.ask.generate.sampling, seed);
  read_biases(m, r.ask.generate);
  r.ask.generate.salt = m.text("cache_salt");
  if (m.has("cache_salt") && r.ask.generate.salt.empty()) fail_member("cache_salt", "is empty");
  if (r.ask.generate.salt.size() > PagesRequest::kMostSalt)
    fail_member("cache_salt", base::concat("has more than ", PagesRequest::kMostSalt, " bytes"));
  r.ask.generate.least_tokens = m.integer("min_tokens", 0, 0, INT32_MAX);
  r.form = read_form(m);
  refuse_unserved(m, is_chat);
  return r;
}

/// Clients send the arguments of a call as text, but templates write them as an object. A text that is no
/// object stays what it is: an answer may have ended within a call, and be sent back.
void open_arguments(Json& call) {
  Json* function = call.find("function");
  Json* arguments = function == nullptr ? nullptr : function->find("arguments");
  if (arguments == nullptr || !arguments->is_string()) return;
  if (arguments->as_string().empty()) {
    *arguments = Json::object();
    return;
  }
  try {
    Json object = base::parse_json(arguments->as_string());
    if (object.is_object()) *arguments = std::move(object);
  } catch (const base::Error&) {
    return;
  }
}

/// Converts a message to the form of templates: its content is one text, which clients may send in parts.
Json message_of(const Json& given) {
  const Json* role = given.find("role");
  if (role == nullptr || !role->is_string()) fail_member("messages", "each is an object with a role");
  Json message = given;
  if (role->as_string() == "developer") message.set("role", "system");  // the newer name of the same role
  if (Json* calls = message.find("tool_calls"); calls != nullptr && calls->is_array()) {
    for (Json& call : calls->as_array()) open_arguments(call);
  }
  const Json* content = given.find("content");
  if (content == nullptr || content->is_null() || content->is_string()) return message;
  if (!content->is_array()) fail_member("messages", "content is a text or a list of parts");
  std::string text;
  for (const Json& part : content->as_array()) {
    const Json* type = part.find("type");
    const Json* words = part.find("text");
    if (type == nullptr || *type != Json("text") || words == nullptr || !words->is_string())
      fail_member("messages", "parts of a content other than text are not served");
    text += (text.empty() ? "" : "\n") + words->as_string();
  }
  message.set("content", std::move(text));
  return message;
}

/// Throws unless each tool is a function with a unique name.
void check_tools(const Json& tools) {
  if (!tools.is_array()) fail_member("tools", "expected a list");
  std::set<std::string> names;
  for (const Json& tool : tools.as_array()) {
    const Json* type = tool.find("type");
    if (type != nullptr && *type != Json("function"))
      refuse_member("tools", "of other kinds than function are not served");
    const Json* function = tool.find("function");
    const Json* name = function == nullptr ? nullptr : function->find("name");
    if (name == nullptr || !name->is_string()) fail_member("tools", "each is a function with a name");
    if (!names.insert(name->as_string()).second)
      fail_member("tools", "two are named '" + name->as_string() + "'");
  }
}

/// Reads none, auto, required, or {"type": "function", "function": {"name"}}; true if tools may be called.
bool read_tool_choice(const Json* choice, CompletionRequest& r) {
  if (choice == nullptr) return true;
  if (choice->is_string()) {
    const std::string& word = choice->as_string();
    r.must_call = word == "required";
    if (word == "none" || word == "auto" || r.must_call) return word != "none";
    fail_member("tool_choice", "expected none, auto, required or a function");
  }
  const Json* function = choice->find("function");
  const Json* name = function == nullptr ? nullptr : function->find("name");
  if (name == nullptr || !name->is_string()) fail_member("tool_choice", "expected a function with a name");
  r.must_call = true;
  r.called = name->as_string();
  return true;
}

/// Tools are passed to the template, and calls are searched in the answer.
void read_tools(const Members& m, CompletionRequest& r) {
  const Json* tools = m.find("tools");
  if (tools != nullptr) check_tools(*tools);
  const bool may_call = read_tool_choice(m.find("tool_choice"), r);
  const bool has_tools = tools != nullptr && tools->size() > 0;
  if (r.must_call && !has_tools) fail_member("tool_choice", "needs tools");
  if (!has_tools || !may_call) return;
  const auto is_called = [&](const Json& tool) { return tool.at("function").at("name") == Json(r.called); };
  const base::JsonArray& list = tools->as_array();
  if (!r.called.empty() && std::none_of(list.begin(), list.end(), is_called))
    fail_member("tool_choice", "no tool is named '" + r.called + "'");
  r.chat.tools = *tools;
  r.finds_calls = true;
  r.calls_once = !m.flag("parallel_tool_calls", true) || !r.called.empty();
}

void set_most_tokens(CompletionRequest& r, const Members& m, std::string_view name) {
  if (!m.has(name)) return;
  r.ask.generate.max_tokens = m.integer(name, 0, 1, INT32_MAX);
  r.has_most_tokens = true;
}

}  // namespace

Json request_object(std::string_view body) {
  Json json = request_json(body);
  base::require(json.is_object(), "expected a JSON object, found ", json.type_name());
  return json;
}

WantedForm CompletionRequest::whole_form(ToolForm how) const {
  if (!finds_calls || (!must_call && !form.any())) return form;
  WantedForm calls = form_of_calls({.tools = chat.tools, .name = called, .once = calls_once}, how);
  return must_call ? calls : form_of_either(form, std::move(calls));
}

CompletionRequest completion_request(std::string_view body, int64_t seed) {
  constexpr int64_t kUsualTokens = 16;
  const Json json = request_object(body);
  const Members m(json);
  CompletionRequest r = common(m, seed, false);
  const Json* prompt = m.find("prompt");
  if (prompt == nullptr) fail_member("prompt", "is missing");
  r.prompts = prompts_of("prompt", *prompt);
  r.ask.generate.max_tokens = kUsualTokens;
  r.has_most_tokens = true;
  r.echoes = m.flag("echo");
  r.drops_answer = r.echoes && m.integer("max_tokens", 1, 0, INT32_MAX) == 0;
  if (r.drops_answer) {
    r.ask.generate.max_tokens = 1;
  } else {
    set_most_tokens(r, m, "max_tokens");
  }
  r.best_of = m.integer("best_of", r.choices, 1, kMostChoices);
  if (r.best_of < r.choices) fail_member("best_of", "is less than n");
  if (r.best_of > r.choices && r.streams) fail_member("best_of", "above n cannot be streamed");
  if (static_cast<int64_t>(r.prompts.size()) * r.best_of > kMostAnswers)
    fail_member("n", base::concat("more than ", kMostAnswers, " answers to all prompts"));
  const int64_t best = m.integer("logprobs", -1, 0, passes::kMostListed);
  r.wants_log_probabilities = best >= 0;
  r.ask.generate.likeliest = std::max<int64_t>(best, 0);
  r.ask.generate.scores_prompt = r.wants_log_probabilities && r.echoes;
  return r;
}

CompletionRequest chat_request(std::string_view body, int64_t seed) {
  return chat_request(request_object(body), seed);
}

CompletionRequest chat_request(const Json& body, int64_t seed) {
  const Members m(body);
  CompletionRequest r = common(m, seed, true);
  r.best_of = r.choices;
  const Json* messages = m.find("messages");
  if (messages == nullptr) fail_member("messages", "is missing");
  if (!messages->is_array() || messages->size() == 0)
    fail_member("messages", "expected a list that is not empty");
  r.chat.messages = Json::array();
  for (const Json& message : messages->as_array()) r.chat.messages.push_back(message_of(message));
  set_most_tokens(r, m, "max_tokens");
  set_most_tokens(r, m, "max_completion_tokens");
  data::ChatOptions& options = r.chat.options;
  options.continue_final_message = m.flag("continue_final_message");
  options.add_generation_prompt = m.flag("add_generation_prompt", !options.continue_final_message);
  if (options.continue_final_message && options.add_generation_prompt)
    fail_member("continue_final_message", "excludes add_generation_prompt");
  if (const Json* variables = m.find("chat_template_kwargs")) {
    if (!variables->is_object()) fail_member("chat_template_kwargs", "expected an object");
    options.variables = *variables;
  }
  r.wants_log_probabilities = m.flag("logprobs");
  r.ask.generate.likeliest = m.integer("top_logprobs", 0, 0, passes::kMostListed);
  if (r.ask.generate.likeliest > 0 && !r.wants_log_probabilities)
    fail_member("top_logprobs", "needs logprobs");
  read_tools(m, r);
  return r;
}

}  // namespace trireme::serve
