// Finds calls of tools in the text of an answer.
#include "serve/openai/tool_calls.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/text/json.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr std::string_view kBegin = "<tool_call>", kEnd = "</tool_call>", kBlanks = " \t\r\n;";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

std::optional<ToolCall> call_of(const Json& json) {
  const Json* name = json.find("name");
  const Json* arguments = json.find("arguments");
  if (arguments == nullptr) arguments = json.find("parameters");
  if (name == nullptr || !name->is_string() || arguments == nullptr) return std::nullopt;
  if (arguments->is_object()) return ToolCall{name->as_string(), arguments->dump()};
  // Some models write the arguments as text, in the form that clients receive.
  return arguments->is_string() ? std::optional(ToolCall{name->as_string(), arguments->as_string()})
                                : std::nullopt;
}

/// The calls in a text that is one object or an array of objects; empty if it is neither.
std::vector<ToolCall> calls_of(std::string_view text) {
  std::vector<ToolCall> calls;
  try {
    const Json json = base::parse_json(text);
    const base::JsonArray list = json.is_array() ? json.as_array() : base::JsonArray{json};
    for (const Json& one : list) {
      std::optional<ToolCall> call = call_of(one);
      if (!call) return {};
      calls.push_back(std::move(*call));
    }
  } catch (const base::Error&) {
    calls.clear();  // it is plain text
  }
  return calls;
}

/// The end of the object at the start of `text`; npos if it has none. Braces inside strings do not count.
size_t end_of_object(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\') ++i;
      in_string = i < text.size() && text[i] != '"';
    } else if (text[i] == '"') {
      in_string = true;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

/// The calls of an answer that consists of objects only; empty if it contains anything else.
std::vector<ToolCall> bare_calls(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('[')) return calls_of(text);
  std::vector<ToolCall> calls;
  for (; !text.empty(); text = trimmed(text)) {
    const size_t end = text.starts_with('{') ? end_of_object(text) : std::string_view::npos;
    if (end == std::string_view::npos) return {};
    std::vector<ToolCall> one = calls_of(text.substr(0, end));
    if (one.size() != 1) return {};
    calls.push_back(std::move(one[0]));
    text.remove_prefix(end);
  }
  return calls;
}

}  // namespace

ToolAnswer find_tool_calls(std::string_view text) {
  ToolAnswer answer;
  answer.calls = bare_calls(text);
  if (!answer.calls.empty()) return answer;
  for (;;) {
    const size_t begin = std::min(text.find(kBegin), text.size());
    const size_t inner = std::min(begin + kBegin.size(), text.size());
    const size_t end = std::min(text.find(kEnd, inner), text.size());
    std::vector<ToolCall> calls = calls_of(trimmed(text.substr(inner, end - inner)));
    const size_t next = std::min(end + kEnd.size(), text.size());
    answer.content += text.substr(0, calls.empty() ? next : begin);
    answer.calls.insert(answer.calls.end(), calls.begin(), calls.end());
    if (next == text.size()) break;
    text.remove_prefix(next);
  }
  if (!answer.calls.empty()) answer.content = trimmed(answer.content);
  return answer;
}

std::string ToolText::push(std::string_view text) {
  held_ += text;
  if (holds_all_) return {};
  size_t first = 0;
  if (!has_begun_) {
    first = held_.find_first_not_of(kBlanks);
    if (first == std::string::npos) return {};
    holds_all_ = held_[first] == '{' || held_[first] == '[';
    if (holds_all_) return {};
  }
  size_t shown = held_.find(kBegin);
  holds_all_ = shown != std::string::npos;
  if (!holds_all_) {
    // The end of the text may be the beginning of the marker: hold that part back.
    size_t part = std::min(kBegin.size() - 1, held_.size());
    while (part > 0 && !held_.ends_with(kBegin.substr(0, part))) --part;
    shown = held_.size() - part;
  }
  // Blanks are content only if what follows them is.
  if (!has_begun_ && shown <= first) return {};
  std::string out = held_.substr(0, shown);
  held_.erase(0, shown);
  has_begun_ = has_begun_ || !out.empty();
  return out;
}

ToolAnswer ToolText::finish() {
  ToolAnswer rest = find_tool_calls(held_);
  // Objects without markers are calls only if no text precedes them.
  if (has_begun_ && !held_.starts_with(kBegin)) rest = {.content = held_, .calls = {}};
  held_.clear();
  return rest;
}

}  // namespace trireme::serve
