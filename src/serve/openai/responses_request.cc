// Reads requests of the Responses API.
#include "serve/openai/responses_request.h"

#include <map>
#include <string>
#include <utility>

namespace trireme::serve {
namespace {

using base::Json;

std::string item_type(const Json& item, const char* otherwise) {
  const Json* type = item.find("type");
  if (type == nullptr || type->is_null()) return otherwise;
  if (!type->is_string()) fail_member("input", "the type of an item is a string");
  return type->as_string();
}

/// The text of a content: one string, or parts with text.
std::string content_text(const Json& content) {
  if (content.is_string()) return content.as_string();
  if (!content.is_array()) fail_member("input", "content is a text or a list of parts");
  std::string text;
  for (const Json& part : content.as_array()) {
    const std::string type = item_type(part, "text");
    const Json* words = part.find(type == "refusal" ? "refusal" : "text");
    const bool is_text = type == "input_text" || type == "output_text" || type == "text" || type == "refusal";
    if (!is_text) refuse_member("input", "parts of type '" + type + "' are not served");
    if (words == nullptr || !words->is_string()) fail_member("input", "a part of text has no text");
    text += (text.empty() ? "" : "\n") + words->as_string();
  }
  return text;
}

std::string string_member(const Json& item, const char* name) {
  const Json* member = item.find(name);
  if (member == nullptr || !member->is_string()) fail_member("input", std::string("an item has no ") + name);
  return member->as_string();
}

/// Adjacent calls form one message of the assistant.
void add_call(const Json& item, Json& messages) {
  const Json call =
      Json::object({{"id", string_member(item, "call_id")},
                    {"type", "function"},
                    {"function", Json::object({{"name", string_member(item, "name")},
                                               {"arguments", string_member(item, "arguments")}})}});
  base::JsonArray& list = messages.as_array();
  Json* calls = list.empty() ? nullptr : list.back().find("tool_calls");
  if (calls == nullptr) {
    list.push_back(
        Json::object({{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}}));
  } else {
    calls->push_back(call);
  }
}

void add_item(const Json& item, Json& messages) {
  if (!item.is_object()) fail_member("input", base::concat("an item is an object, found ", item.type_name()));
  const std::string type = item_type(item, "message");
  if (type == "message") {
    const Json* content = item.find("content");
    if (content == nullptr) fail_member("input", "a message has no content");
    messages.push_back(
        Json::object({{"role", string_member(item, "role")}, {"content", content_text(*content)}}));
  } else if (type == "function_call") {
    add_call(item, messages);
  } else if (type == "function_call_output") {
    const Json* output = item.find("output");
    if (output == nullptr) fail_member("input", "an output of a call has no output");
    messages.push_back(Json::object({{"role", "tool"},
                                     {"tool_call_id", string_member(item, "call_id")},
                                     {"content", content_text(*output)}}));
  } else if (type != "reasoning") {  // perhaps another model's: ignored, as an answer does not depend on it
    refuse_member("input", "items of type '" + type + "' are not served");
  }
}

/// The items to answer: those of an earlier response and its output, then the input.
Json items_of(const Members& m, const FindConversation& find) {
  Json items = Json::array();
  if (m.has("previous_response_id")) items = find(m.text("previous_response_id"));
  const Json* input = m.find("input");
  if (input == nullptr) fail_member("input", "is missing");
  if (input->is_string()) {
    items.push_back(Json::object({{"type", "message"}, {"role", "user"}, {"content", *input}}));
    return items;
  }
  if (!input->is_array() || input->size() == 0)
    fail_member("input", "expected a string or a list that is not empty");
  for (const Json& item : input->as_array()) items.push_back(item);
  return items;
}

/// Instructions apply to one response only.
Json messages_of(const Members& m, const Json& items) {
  Json messages = Json::array();
  if (m.has("instructions"))
    messages.push_back(Json::object({{"role", "system"}, {"content", m.text("instructions")}}));
  for (const Json& item : items.as_array()) add_item(item, messages);
  return messages;
}

/// Items as in listings: each with an id, a type, and its content in parts.
Json shown_items(const Json& items) {
  Json shown = Json::array();
  for (const Json& given : items.as_array()) {
    Json item = given;
    const std::string type = item_type(item, "message");
    item.set("type", type);
    if (item.find("id") == nullptr || !item.find("id")->is_string())
      item.set("id", base::concat(type == "message" ? "msg" : "item", "_", shown.size()));
    if (item.find("status") == nullptr) item.set("status", "completed");
    const Json* content = item.find("content");
    if (type == "message" && content != nullptr && content->is_string()) {
      const bool is_answer = item.find("role") != nullptr && *item.find("role") == Json("assistant");
      Json part = Json::object({{"type", is_answer ? "output_text" : "input_text"}, {"text", *content}});
      if (is_answer) part.set("annotations", Json::array());
      item.set("content", Json::array({std::move(part)}));
    }
    shown.push_back(std::move(item));
  }
  return shown;
}

/// Functions are flat objects here, but are nested in a member in chat requests.
Json tools_of(const Json& tools) {
  if (!tools.is_array()) fail_member("tools", "expected a list");
  Json list = Json::array();
  for (const Json& tool : tools.as_array()) {
    const Json* type = tool.find("type");
    if (type == nullptr || !type->is_string()) fail_member("tools", "each has a type");
    if (type->as_string() != "function")
      refuse_member("tools", "only functions are served, not '" + type->as_string() + "'");
    Json function = Json::object();
    for (const char* name : {"name", "description", "parameters", "strict"}) {
      const Json* member = tool.find(name);
      if (member != nullptr && !member->is_null()) function.set(name, *member);
    }
    list.push_back(Json::object({{"type", "function"}, {"function", std::move(function)}}));
  }
  return list;
}

Json tool_choice_of(const Json& choice) {
  if (choice.is_string()) return choice;
  const Json* type = choice.find("type");
  const Json* name = choice.find("name");
  if (type == nullptr || *type != Json("function") || name == nullptr)
    refuse_member("tool_choice", "only none, auto, required and a function are served");
  return Json::object({{"type", "function"}, {"function", Json::object({{"name", *name}})}});
}

void refuse_unserved_items(const Members& m, bool keeps) {
  if (m.has("conversation"))
    refuse_member("conversation", "is not served: go on by previous_response_id, or give all items in input");
  if (!keeps && m.has("previous_response_id"))
    refuse_member("previous_response_id", "is not served: no response is kept; give all items in input");
  if (m.flag("background")) refuse_member("background", "is not served");
  for (const char* name : {"prompt", "context_management"}) {
    if (m.has(name)) refuse_member(name, "is not served");
  }
  if (m.has("truncation") && m.text("truncation") != "disabled")
    refuse_member("truncation", "only disabled is served");
}

/// The members of the request that its response repeats.
Json settings_of(const Members& m, bool is_kept) {
  Json settings = Json::object();
  const auto repeat = [&](const char* name, Json otherwise) {
    const Json* given = m.find(name);
    settings.set(name, given == nullptr ? std::move(otherwise) : *given);
  };
  repeat("instructions", nullptr);
  repeat("max_output_tokens", nullptr);
  repeat("max_tool_calls", nullptr);
  repeat("metadata", Json::object());
  repeat("parallel_tool_calls", true);
  repeat("reasoning", Json::object({{"effort", nullptr}, {"summary", nullptr}}));
  repeat("service_tier", "default");
  repeat("temperature", 1.0);
  repeat("text", Json::object({{"format", Json::object({{"type", "text"}})}}));
  repeat("tool_choice", "auto");
  repeat("tools", Json::array());
  repeat("top_logprobs", 0);
  repeat("top_p", 1.0);
  repeat("user", nullptr);
  for (const char* name : {"previous_response_id", "safety_identifier", "prompt_cache_key"})
    repeat(name, nullptr);
  for (Json& tool : settings.find("tools")->as_array()) {
    for (const char* name : {"description", "parameters", "strict"}) {
      if (tool.find(name) == nullptr)
        tool.set(name, name == std::string_view("strict") ? Json(false) : Json());
    }
  }
  settings.set("background", false);
  settings.set("store", is_kept);
  settings.set("truncation", "disabled");
  return settings;
}

/// Converts the request to a chat request; members with equal names are copied, such as those for sampling.
Json chat_of(const Members& m, const Json& json, const Json& items) {
  Json chat = Json::object();
  for (const char* name : {"model",
                           "stream",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "seed",
                           "stop",
                           "stop_token_ids",
                           "frequency_penalty",
                           "presence_penalty",
                           "repetition_penalty",
                           "logit_bias",
                           "min_tokens",
                           "ignore_eos",
                           "priority",
                           "cache_salt",
                           "top_logprobs",
                           "parallel_tool_calls",
                           "chat_template_kwargs",
                           "structured_outputs"}) {
    if (const Json* member = json.find(name)) chat.set(name, *member);
  }
  chat.set("messages", messages_of(m, items));
  if (m.has("max_output_tokens")) chat.set("max_completion_tokens", *m.find("max_output_tokens"));
  if (m.has("tools")) chat.set("tools", tools_of(*m.find("tools")));
  if (m.has("tool_choice")) chat.set("tool_choice", tool_choice_of(*m.find("tool_choice")));
  return chat;
}

/// Whether log probabilities are requested; nothing else that can be included exists here.
bool includes_chances(const Members& m) {
  const Json* include = m.find("include");
  if (include == nullptr) return false;
  if (!include->is_array()) fail_member("include", "expected a list");
  bool found = false;
  for (const Json& one : include->as_array()) found = found || one == Json("message.output_text.logprobs");
  return found;
}

/// Renames the member in an error to its name in this API.
[[noreturn]] void throw_renamed(const MemberError& e) {
  static const std::map<std::string_view, std::string> kNames = {
      {"messages", "input"}, {"max_completion_tokens", "max_output_tokens"}};
  const auto at = kNames.find(e.member());
  if (at == kNames.end()) throw MemberError(e);
  throw MemberError(e.code(), at->second, e.message().substr(e.member().size() + 2));
}

}  // namespace

ResponsesRequest responses_request(std::string_view body, int64_t seed, const FindConversation& find) {
  const Json json = request_object(body);
  const Members m(json);
  refuse_unserved_items(m, find != nullptr);
  ResponsesRequest r;
  r.is_kept = m.flag("store", true) && find != nullptr;
  const Json items = items_of(m, find);
  Json chat = chat_of(m, json, items);
  if (r.is_kept) r.items = shown_items(items);
  r.lists_chances = includes_chances(m) || m.integer("top_logprobs", 0, 0, passes::kMostListed) > 0;
  if (r.lists_chances) chat.set("logprobs", true);
  try {
    r.chat = chat_request(chat, seed);
  } catch (const MemberError& e) {
    throw_renamed(e);
  }
  if (const Json* text = m.find("text")) {
    const Json* format = text->find("format");
    if (format != nullptr && !format->is_null()) {
      WantedForm form = form_of_format(*format, "text");
      if (form.any() && r.chat.form.any()) fail_member("text", "stands beside structured_outputs");
      if (form.any()) r.chat.form = std::move(form);
    }
  }
  r.settings = settings_of(m, r.is_kept);
  return r;
}

}  // namespace trireme::serve
