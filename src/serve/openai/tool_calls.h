// Calls of tools in the text of an answer, in the forms that published models write.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::serve {

struct ToolCall {
  std::string name;
  std::string arguments;  ///< JSON text of an object
};

/// What an answer says, and what it calls.
struct ToolAnswer {
  std::string content;
  std::vector<ToolCall> calls;
};

/// Finds calls: {"name", "arguments" or "parameters"} as JSON, each between <tool_call> and </tool_call>
/// (Hermes, Qwen), or nothing but such objects in the whole answer, one, several with semicolons or lines
/// between them (Llama 3), or in an array (Mistral). What is no such thing is content: a model may write
/// anything. Takes time in proportion to the text.
ToolAnswer find_tool_calls(std::string_view text);

/// Splits a stream into what can be shown as content and what may be calls, which is held back.
class ToolText {
 public:
  /// Content that is certain now.
  std::string push(std::string_view text);
  /// What was held back, with the calls in it.
  ToolAnswer finish();

 private:
  std::string held_;
  bool has_begun_ = false;  ///< content that is no blank was shown
  bool holds_all_ = false;  ///< calls may have begun
};

}  // namespace trireme::serve
