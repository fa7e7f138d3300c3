// Tests finding calls of tools in answers, complete and as they arrive.
#include "serve/openai/tool_calls.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace trireme::serve {
namespace {

std::string told(const ToolAnswer& answer) {
  std::string out = answer.content;
  for (const ToolCall& call : answer.calls) out += "|" + call.name + call.arguments;
  return out;
}

struct CallCase {
  const char *text, *want;
};

constexpr CallCase kCallCases[] = {
    {"", ""},
    {"plain text", "plain text"},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "|f{\"a\":1}"},
    {"I look.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "I look.|f{}"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"g\", "
     "\"arguments\": "
     "{\"x\": \"</y>\"}}</tool_call>",
     "|f{}|g{\"x\":\"</y>\"}"},
    {"\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "|f{}"},
    {"<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>"},
    {"\n\n<tool_call>not json</tool_call>", "\n\n<tool_call>not json</tool_call>"},
    {" \n<tool", " \n<tool"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", "|f{}"},  // cut off after the object
    {"<tool_call>{\"name\": \"f\", \"argu", "<tool_call>{\"name\": \"f\", \"argu"},
    {"{\"name\": \"f\", \"parameters\": {\"a\": \"{\"}}", "|f{\"a\":\"{\"}"},
    {"{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}", "|f{}|g{}"},
    {"[{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, {\"name\": \"g\", \"arguments\": \"{}\"}]",
     "|f{\"a\":[1]}|g{}"},
    {"{\"answer\": 3}", "{\"answer\": 3}"},
    {"[1, 2]", "[1, 2]"},
    {"{ 3 }", "{ 3 }"},
    {"a < b <tool", "a < b <tool"},
    {"Here: {\"name\": \"f\", \"arguments\": {}}", "Here: {\"name\": \"f\", \"arguments\": {}}"},
};

TEST(ToolCalls, AreFoundInEveryForm) {
  for (const CallCase& c : kCallCases) EXPECT_EQ(told(find_tool_calls(c.text)), c.want) << c.text;
}

/// However a text is split into pieces, the streamed parts together equal the result for the whole text.
TEST(ToolCalls, AStreamSaysWhatTheWholeSays) {
  base::Rng rng(4);
  for (const CallCase& c : kCallCases) {
    for (int turn = 0; turn < 50; ++turn) {
      ToolText stream;
      std::string shown;
      const std::string_view text = c.text;
      for (size_t at = 0; at < text.size();) {
        const size_t size = std::min<size_t>(1 + rng() % 9, text.size() - at);
        shown += stream.push(text.substr(at, size));
        at += size;
      }
      const ToolAnswer rest = stream.finish();
      const ToolAnswer whole = find_tool_calls(text);
      std::string content = shown + rest.content;
      if (!whole.calls.empty()) content.erase(content.find_last_not_of(" \n") + 1);
      EXPECT_EQ(told({content, rest.calls}), c.want) << c.text;
    }
  }
}

TEST(ToolCalls, BlanksBeforeACallAreNoContent) {
  const std::string text = "\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    ToolText stream;
    EXPECT_EQ(stream.push(text.substr(0, cut)), "") << cut;
    EXPECT_EQ(stream.push(text.substr(cut)), "") << cut;
    EXPECT_EQ(told(stream.finish()), "|f{}") << cut;
  }
  ToolText plain;
  EXPECT_EQ(plain.push(" \n"), "");
  EXPECT_EQ(plain.push("a"), " \na");
}

TEST(ToolCalls, LongTextsTakeNoLonger) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "<tool_call>";
  EXPECT_EQ(find_tool_calls(text).content.size(), text.size());
  EXPECT_EQ(find_tool_calls(std::string(200000, '{')).content.size(), 200000u);
}

}  // namespace
}  // namespace trireme::serve
