// Tests forms of answers: which members of a request demand one, and that calls of tools allowed by a form
// are found again.
#include "serve/openai/wanted_form.h"

#include <gtest/gtest.h>

#include "data/grammar/matcher.h"
#include "serve/openai/completion_request.h"
#include "serve/openai/responses_request.h"
#include "serve/openai/tool_calls.h"

namespace trireme::serve {
namespace {

using base::Json;

bool takes(const WantedForm& form, std::string_view text) {
  data::GrammarAutomaton automaton(form.read());
  return automaton.is_complete(automaton.step(automaton.start(), text));
}

WantedForm form_of(const char* members) {
  const Json json = base::parse_json(members);
  return read_form(Members(json));
}

/// The member named by the error; empty if there is none.
std::string refused(const char* members) {
  try {
    form_of(members);
  } catch (const MemberError& e) {
    return e.member();
  }
  return {};
}

TEST(WantedForm, IsReadFromEveryMember) {
  EXPECT_FALSE(form_of(R"({"response_format": {"type": "text"}, "guided_json": null})").any());
  for (const char* members :
       {R"({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}})",
        R"({"response_format": {"type": "json_object", "schema": {"type": "integer"}}})",
        R"({"guided_json": {"type": "integer"}})", R"({"guided_json": "{\"type\": \"integer\"}"})",
        R"({"guided_regex": "[0-9]+"})", R"({"guided_choice": ["7", "42"]})",
        R"({"guided_grammar": "root ::= [0-9]+"})",
        R"({"structured_outputs": {"json": {"type": "integer"}}})",
        R"({"structured_outputs": {"regex": "[0-9]+", "choice": null, "json_object": false}})"}) {
    const WantedForm form = form_of(members);
    EXPECT_TRUE(takes(form, "42")) << members;
    EXPECT_FALSE(takes(form, "x")) << members;
  }
  EXPECT_TRUE(takes(form_of(R"({"response_format": {"type": "json_object"}})"), R"({"a": [1, "b"]})"));
  EXPECT_EQ(refused(R"({"response_format": {}})"), "response_format");
  EXPECT_EQ(refused(R"({"response_format": {"type": "grammar"}})"), "response_format");
  EXPECT_EQ(refused(R"({"guided_regex": "a", "guided_json": {}})"), "guided_regex");
  EXPECT_EQ(refused(R"({"structured_outputs": {"regex": "a", "choice": ["b"]}})"), "structured_outputs");
  EXPECT_EQ(refused(R"({"guided_choice": [1]})"), "guided_choice");
}

/// `strict` decides whether an unsupported bound is refused or ignored.
TEST(WantedForm, IsAsStrictAsItSays) {
  const char* kLoose = R"({"response_format": {"type": "json_schema", "json_schema": {"schema":
      {"type": "integer", "minimum": 3}}}})";
  const char* kStrict = R"({"response_format": {"type": "json_schema", "json_schema": {"strict": true,
      "schema": {"type": "integer", "minimum": 3}}}})";
  EXPECT_TRUE(takes(form_of(kLoose), "2"));
  EXPECT_FALSE(takes(form_of(kLoose), "\"2\""));
  EXPECT_THROW(form_of(kStrict).read(), base::Error);
  EXPECT_NE(form_of(kLoose).source, form_of(kStrict).source);
}

/// Tools share the grammar of equal arguments: thousands without any would be a million symbols otherwise.
TEST(WantedForm, ThousandsOfToolsFit) {
  Json tools = Json::array();
  for (int i = 0; i < 4000; ++i) {
    Json function = Json::object({{"name", "f" + std::to_string(i)}});
    if (i % 2 == 1)
      function.set("parameters",
                   base::parse_json(R"({"type":"object","properties":{"n":{"type":"integer"}}})"));
    tools.push_back(Json::object({{"type", "function"}, {"function", function}}));
  }
  const data::Grammar grammar = form_of_calls({.tools = tools, .once = true}, ToolForm::tagged).read();
  data::GrammarAutomaton automaton(grammar);
  const auto takes_call = [&](const std::string& call) {
    return automaton.is_complete(
        automaton.step(automaton.start(), "<tool_call>\n" + call + "\n</tool_call>"));
  };
  EXPECT_TRUE(takes_call(R"({"name": "f3998", "arguments": {"x":[1]}})"));
  EXPECT_TRUE(takes_call(R"({"name": "f3999", "arguments": {"n":1}})"));
  EXPECT_FALSE(takes_call(R"({"name": "f3999", "arguments": {"x":[1]}})"));
}

TEST(WantedForm, CallsAreFoundAgainInEveryForm) {
  const Json tools = base::parse_json(R"([
      {"type": "function", "function": {"name": "day", "parameters": {"type": "object",
        "properties": {"n": {"type": "integer"}}, "required": ["n"]}}},
      {"type": "function", "function": {"name": "now"}}])");
  struct Case {
    ToolForm form;
    const char *one, *two;
  };
  for (const Case& c :
       {Case{ToolForm::tagged, "<tool_call>\n{\"name\": \"day\", \"arguments\": {\"n\":3}}\n</tool_call>",
             "<tool_call>\n{\"name\": \"day\", \"arguments\": {\"n\":3}}\n</tool_call>\n"
             "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"},
        Case{ToolForm::bare, "{\"name\": \"day\", \"parameters\": {\"n\":3}}",
             "{\"name\": \"day\", \"parameters\": {\"n\":3}}; {\"name\": \"now\", \"parameters\": {}}"},
        Case{ToolForm::array, "[{\"name\": \"day\", \"arguments\": {\"n\":3}}]",
             "[{\"name\": \"day\", \"arguments\": {\"n\":3}}, {\"name\": \"now\", \"arguments\": {}}]"}}) {
    const WantedForm any = form_of_calls({.tools = tools}, c.form);
    const WantedForm once = form_of_calls({.tools = tools, .once = true}, c.form);
    const WantedForm named = form_of_calls({.tools = tools, .name = "now", .once = true}, c.form);
    EXPECT_TRUE(takes(any, c.one) && takes(any, c.two) && takes(once, c.one)) << c.one;
    EXPECT_FALSE(takes(once, c.two) || takes(named, c.one) || takes(any, "")) << c.two;
    EXPECT_EQ(find_tool_calls(c.one).calls.size(), 1u) << c.one;
    const ToolAnswer both = find_tool_calls(c.two);
    ASSERT_EQ(both.calls.size(), 2u) << c.two;
    EXPECT_EQ(both.calls[0].name + both.calls[0].arguments + both.calls[1].name, "day{\"n\":3}now");
    EXPECT_TRUE(both.content.empty());
    std::string wrong = c.one;
    wrong.replace(wrong.find(":3"), 2, ":\"3\"");
    EXPECT_FALSE(takes(any, wrong)) << wrong;
    // A tool call or a number, as the model likes.
    const WantedForm either = form_of_either(form_of(R"({"guided_regex": "[0-9]+"})"), any);
    EXPECT_TRUE(takes(either, "17") && takes(either, c.two));
    EXPECT_FALSE(takes(either, "17x"));
  }
}

/// A conversation given in items equals the one given in messages.
TEST(ResponsesRequest, ItemsAreMessages) {
  const ResponsesRequest r = responses_request(R"({"model": "m", "instructions": "Be brief.", "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "reasoning", "summary": []},
      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"x\":1}"},
      {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "1", "output": "done"}], "max_output_tokens": 5})",
                                               1);
  const base::JsonArray& list = r.chat.chat.messages.as_array();
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0].dump(), R"({"role":"system","content":"Be brief."})");
  EXPECT_EQ(list[1].at("content").as_string(), "a\nb");
  EXPECT_EQ(list[2].at("tool_calls").size(), 2u);
  EXPECT_EQ(list[2].at("tool_calls").at(size_t{0}).at("function").at("arguments").dump(), R"({"x":1})");
  EXPECT_EQ(list[3].dump(), R"({"role":"tool","tool_call_id":"1","content":"done"})");
  EXPECT_EQ(r.chat.ask.generate.max_tokens, 5);
  EXPECT_EQ(r.settings.at("max_output_tokens").as_int(), 5);
  EXPECT_FALSE(r.settings.at("store").as_bool());
}

}  // namespace
}  // namespace trireme::serve
