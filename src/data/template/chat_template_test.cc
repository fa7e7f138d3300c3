// Tests chat templates: files, conventions of Transformers, and that hostile templates end in bounded time
// and memory. tests/chat_templates_transformers.py compares the rendered texts with Transformers.
#include "data/template/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/scratch.h"
#include "tensor/gguf/gguf_file.h"
#include "tensor/gguf/gguf_writer.h"
#include "tests/test_data.h"

namespace trireme::data {
namespace {

using base::ErrorCode;
using base::Json;

Json turns(std::initializer_list<const char*> texts) {
  Json messages = Json::array();
  for (const char* text : texts) {
    const char* role = messages.size() % 2 == 0 ? "user" : "assistant";
    messages.push_back(Json::object({{"role", role}, {"content", text}}));
  }
  return messages;
}

std::string render(std::string_view source, const ChatOptions& options = {}) {
  return ChatTemplate(source, Json::object({{"bos_token", "<s>"}}))
      .render(turns({"Hi", "Yes? "}), {}, options);
}

ErrorCode code_of(std::string_view source) {
  try {
    render(source);
  } catch (const base::Error& e) {
    return e.code();
  }
  return ErrorCode::internal;
}

constexpr std::string_view kPlain =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

TEST(ChatTemplate, RendersConversations) {
  EXPECT_EQ(render(kPlain), "<s>[user] Hi\n[assistant] Yes? \n[assistant]");
  EXPECT_EQ(render(kPlain, {.add_generation_prompt = false, .continue_final_message = true}),
            "<s>[user] Hi\n[assistant] Yes? ");
  EXPECT_EQ(render("{% for m in messages %}{{ m.content | trim }};{% endfor %}",
                   {.add_generation_prompt = false, .continue_final_message = true}),
            "Hi;Yes?");
  EXPECT_EQ(render("{{ strftime_now('%Y') }}", {.now_s = 86400 * 366}), "1971");
}

TEST(ChatTemplate, ReadsTheTemplateOfADirectory) {
  const auto root = tests::shared_data("tokenizers/qwen2.5");
  if (!root) GTEST_SKIP() << tests::kNoSharedData;
  const auto chat = ChatTemplate::of_directory(root->string());
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->end_token(), "<|im_end|>");
  EXPECT_TRUE(
      chat->render(turns({"Hi"})).ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_FALSE(ChatTemplate::of_directory((*root / "..").string()).has_value());
}

/// The named templates of a directory: one for conversations with tools, and one for others.
TEST(ChatTemplate, ToolsHaveATemplateOfTheirOwn) {
  const auto root = base::make_scratch("trireme-template");
  const auto put = [&](const char* name, const std::string& text) {
    base::write_file_atomic(*root + "/" + name, text);
  };
  const auto named = [](const char* for_tools) {
    const Json usual = Json::object({{"name", "default"}, {"template", "plain"}});
    const Json tools = Json::object({{"name", "tool_use"}, {"template", for_tools}});
    return Json::object({{"chat_template", Json::array({tools, usual})}, {"eos_token", "</s>"}}).dump();
  };
  const Json tools = Json::array({Json::object({{"name", "f"}})});
  put("tokenizer_config.json", named("{{ tools[0].name }} and [TOOL_CALLS]{{ eos_token }}"));
  const auto chat = ChatTemplate::of_directory(*root);
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->render(turns({"Hi"})), "plain");
  EXPECT_EQ(chat->render(turns({"Hi"}), Json::array()), "plain");
  EXPECT_EQ(chat->render(turns({"Hi"}), tools), "f and [TOOL_CALLS]</s>");
  EXPECT_TRUE(chat->mentions("[TOOL_CALLS]"));

  // What is wrong with the one for tools concerns only conversations with tools.
  put("tokenizer_config.json", named("{% include 'x' %}"));
  const auto broken = ChatTemplate::of_directory(*root);
  EXPECT_EQ(broken->render(turns({"Hi"})), "plain");
  EXPECT_THROW(broken->render(turns({"Hi"}), tools), base::Error);

  put("chat_template.jinja", "alone");
  EXPECT_EQ(ChatTemplate::of_directory(*root)->render(turns({"Hi"}), tools), "alone");
  std::filesystem::create_directory(*root + "/additional_chat_templates");
  put("additional_chat_templates/tool_use.jinja", "more");
  EXPECT_EQ(ChatTemplate::of_directory(*root)->render(turns({"Hi"}), tools), "more");

  tensor::GgufWriter writer;
  writer.set_texts("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  writer.set_text("tokenizer.chat_template", "plain");
  writer.set_text("tokenizer.chat_template.tool_use", "tools");
  const auto bytes = std::make_shared<const std::string>(writer.header());
  const auto of_file = ChatTemplate::of_gguf(tensor::GgufFile::parse(*bytes, bytes).metadata());
  EXPECT_EQ(of_file->render(turns({"Hi"})) + of_file->render(turns({"Hi"}), tools), "plaintools");
}

/// Expected texts are those of Jinja2 3.1 with trim_blocks and lstrip_blocks, and of Python 3.11.
TEST(ChatTemplate, TextsAreThoseOfJinja) {
  EXPECT_EQ(render("{{ \"it's foo_bar (x-y) <z\" | title }}"), "It's Foo_bar (X-Y) <Z");
  EXPECT_EQ(render("{{ \"it's foo_bar\".title() }}"), "It'S Foo_Bar");
  EXPECT_EQ(render("a{% raw %}\n x{{y}}\n{% endraw %}\nb"), "a\n x{{y}}\nb");
  EXPECT_EQ(render("{{ '\\033[1m\\7\\1234\\08' }}"), std::string("\x1b[1m\x07S4\0"
                                                                 "8",
                                                                 9));
  EXPECT_EQ(render("{{ 'a  b'.rsplit() }}{{ '  1  2   3  '.rsplit(none, 1) }}{{ '  '.rsplit() }}"),
            "['a', 'b']['  1  2', '3'][]");
  EXPECT_EQ(render("{{ '  1  2   3  '.split(none, 1) }}{{ ' a '.rsplit(none, 0) }}"),
            "['1', '2   3  '][' a']");
}

/// The same oracle.
TEST(ChatTemplate, PlacesAndArgumentsAreThoseOfPython) {
  EXPECT_EQ(render("{{ 'banana'.find('a',2) }} {{ 'banana'.startswith('n',2) }} {{ 'banana'.count('a',2) }} "
                   "{{ [1,2,1].index(1,1) }} {{ 'banana'.rfind('a',0,3) }} {{ 'banana'.endswith('n',0,3) }}"),
            "3 True 2 2 1 True");
  EXPECT_EQ(render("{{ 'bänänä'.find('ä',2) }} {{ 'bänänä'.rfind('n',-4,-1) }} {{ 'abc'.find('',9) }} "
                   "{{ 'abc'.count('') }} {{ 'abc'.startswith('',2,1) }} {{ 'abcabc'.index('b',2) }} "
                   "{{ 'abcabc'.rindex('b') }} {{ [1,2,1].index(1,-1) }}"),
            "3 4 -1 4 False 4 4 2");
  for (const char* source :
       {"{{ 'abc'.upper(1) }}", "{{ 'abc'.strip('a','b') }}", "{{ 'abc'|upper(1) }}", "{{ 1 is odd(1) }}",
        "{{ 'abc'|trim('a', chars='b') }}", "{{ 'abc'.find(sub='b') }}", "{{ range(1,2,3,4)|list }}",
        "{{ missing[1:] }}", "{% macro q(a) %}{% endmacro %}{{ q(1,2) }}", "{{ 'ab'.index('c') }}"})
    EXPECT_EQ(code_of(source), ErrorCode::invalid_argument) << source;
  EXPECT_EQ(render("{% macro q(a) %}[{{ a }}{{ varargs|length }}{{ kwargs }}]{% endmacro %}"
                   "{{ q(1) }}{{ q(1,2,3,b=4) }}{{ varargs is defined }}"),
            "[10{}][12{'b': 4}]False");
}

TEST(ChatTemplate, NumbersAndTextsAreThoseOfPython) {
  EXPECT_EQ(render("{{ 7.5 % 0.1 }} {{ 1.0 // 0.1 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }} {{ -5 % 2.5 }} "
                   "{{ 5 % -2.5 }} {{ 3 // 0.5 }}"),
            "0.09999999999999959 9.0 0.5 -0.5 0.0 -0.0 6.0");
  EXPECT_EQ(
      render("{{ '%s has %d' | format('a', 3) }} {{ '%(x)s-%(y)05.2f' | format(x=1, y=2.5) }} "
             "{{ '%s-%d' % ('a', 7) }} {{ '%5s|%-5s|%05d|%x|%e|%g|%c|%r|%%' % "
             "('é','b',-42,255,1.5,0.0001,'z','q') }} {{ '%s' % {'a': 1} }} {{ '%(a).2s' % {'a': 'éab'} }}"),
      "a has 3 1-02.50 a-7     é|b    |-0042|ff|1.500000e+00|0.0001|z|'q'|% {'a': 1} éa");
  EXPECT_EQ(render("{{ 'a1'.isalnum() }}{{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '三'.isnumeric() }}"
                   "{{ '-5'.zfill(4) }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3,'*') }}|{{ 'ab'.center(5) }}|"
                   "{{ 'aBc'.swapcase() }}{{ 'Straße'.casefold() }}{{ 'Ab Cd'.istitle() }}"),
            "TrueTrueFalseTrue-005|a  |**a|  ab |AbCstrasseTrue");
  EXPECT_EQ(render("{{ [1,2,3]|batch(2,0)|list }} {{ [1,2,3,4]|slice(3,'x')|list }} "
                   "{% for k, v in [{'a':'B'},{'a':'b'},{}]|groupby('a', default='z') %}{{ k }}{{ v }}"
                   "{% endfor %} {{ 'hello big world again'|truncate(10) }} {{ '0x1f'|int(base=16) }} "
                   "{{ ['b','A']|min }}"),
            "[[1, 2], [3, 0]] [[1, 2], [3, 'x'], [4, 'x']] B[{'a': 'B'}, {'a': 'b'}]z[{}] hello... 31 A");
  for (const char* source : {"{{ '%s %s' % ('a',) }}", "{{ '%s' % ('a','b') }}", "{{ '%d' % 'a' }}"})
    EXPECT_EQ(code_of(source), ErrorCode::invalid_argument) << source;
  for (const char* source : {"{% set l = [1] %}{{ '%s' % l }}", "{{ {1: 2} }}", "{{ '%*d' % (1, 2) }}"})
    EXPECT_EQ(code_of(source), ErrorCode::unsupported) << source;
  EXPECT_EQ(code_of("{{ 'a'.ljust(1000000000000) }}"), ErrorCode::exhausted);
  EXPECT_EQ(code_of("{{ [1]|slice(1000000000000)|list }}"), ErrorCode::exhausted);
  EXPECT_EQ(code_of("{{ [1]|slice(1152921504606846976)|list }}"), ErrorCode::exhausted);  // 2^60
}

/// Integers beyond 63 bits are shown as they were given.
TEST(ChatTemplate, LargeIntegersAreShown) {
  const Json large = base::parse_json(R"({"n":18446744073709551615,"m":9223372036854775808})");
  const auto shown = [&](std::string_view source) {
    return ChatTemplate(source).render(turns({"Hi"}), {}, {.variables = large});
  };
  EXPECT_EQ(shown("{{ n }} {{ [m] | tojson }} {{ m | string }}"),
            "18446744073709551615 [9223372036854775808] 9223372036854775808");
  EXPECT_EQ(shown("{{ n is integer }}{{ n > 1 }}{{ n == m }}{{ n == n }}{{ n == true }}{{ 'x' if n }}"),
            "TrueTrueFalseTrueFalsex");
  EXPECT_THROW(shown("{{ n + 1 }}"), base::Error);
}

TEST(ChatTemplate, RefusalsSayWhereAndWhy) {
  try {
    render("a\n{{ raise_exception('roles must alternate') }}");
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(e.message().find("line 2"), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("roles must alternate"), std::string::npos) << e.message();
  }
  for (const char* statement :
       {"include 'x'", "extends 'x'", "import 'x' as y", "block b", "call f()", "do x"})
    EXPECT_EQ(code_of("{% " + std::string(statement) + " %}"), ErrorCode::unsupported) << statement;
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  const char* exhausting[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{{ range(1000000000000) | list | length }}",
      "{{ 'a' * 1000000000000 }}",
      "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% "
      "endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
      "{{ ns.x == ns.x }}{{ ns.x | tojson | length }}",
      "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
      "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
      "{{ ('a' * 100000).replace('', 'bbbbbbbbbbbbbbbb' * 1000) }}",
      "{{ (['x' * 1000000] * 1000) | join }}",
      // Texts that many values share are looked at many times.
      "{% set s = 'a' * 1000000 %}{{ ([s ~ 'b'] * 100000).count(s ~ 'c') }}",
      "{% set s = 'a' * 1000000 %}{{ (s ~ 'b').startswith([s ~ 'c'] * 100000) }}",
      "{% set s = 'a' * 1000000 %}{{ ([{}] * 100000) | map(attribute=s) | list | length }}",
      "{% set s = 'a' * 1000000 %}{% set t = s ~ 'b' %}{% set u = s ~ 'c' %}{% for i in range(100000) %}"
      "{{ t is eq(u) }}{% endfor %}",
      "{% set s = 'a' * 1000000 %}{% set d = {} %}{% for i in range(100000) %}{{ d[s] }}{% endfor %}",
      // A part costs more than its bytes.
      "{{ ('a\n' * 12000000).splitlines() | length }}",
      "{{ ('a ' * 12000000) | wordcount }}",
  };
  for (const char* source : exhausting) EXPECT_EQ(code_of(source), ErrorCode::exhausted) << source;
  const char* refused[] = {
      "{% set ns = namespace(x=[1]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ 2 ** 64 }}",
      "{{ -9223372036854775807 * 2 }}",
      "{{ 1 % 0 }}",
      "{{ {'a': 1}[[1]].x }}",
      "{{ 'x' | tojson(indent=100000) }}"};
  for (const char* source : refused) EXPECT_EQ(code_of(source), ErrorCode::invalid_argument) << source;
  EXPECT_EQ(code_of("{{ " + std::string(100000, '(') + "1 }}"), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of("{{ 1" +
                    [] {
                      std::string sum;
                      for (int i = 0; i < 100000; ++i) sum += "+1";
                      return sum;
                    }() +
                    " }}"),
            ErrorCode::invalid_argument);
}

/// A search takes time that is linear in both texts: here 10^12 comparisons would be a pair of loops.
TEST(ChatTemplate, SearchesAreLinear) {
  const char* searches[] = {"{{ (h ~ 'b') in s }}",
                            "{{ s.find(h ~ 'b') >= 0 }}",
                            "{{ s.rfind('b' ~ h) >= 0 }}",
                            "{{ s.count(h ~ 'b') > 0 }}",
                            "{{ s.split(h ~ 'b') != [s] }}",
                            "{{ s.rsplit('b' ~ h) != [s] }}",
                            "{{ s.replace(h ~ 'b', '') != s }}",
                            "{{ s.partition(h ~ 'b')[1] != '' }}",
                            "{{ s.strip('b' * 1000000 ~ 'c') != s }}"};
  for (const char* search : searches)
    EXPECT_EQ(render("{% set h = 'a' * 1000000 %}{% set s = h ~ h %}" + std::string(search)), "False")
        << search;
  EXPECT_EQ(render("{{ 'xaxbaxc'.rsplit('ax', 1) }}{{ 'aaaa'.rfind('aa') }}{{ 'abcab'.rpartition('ab') }}"),
            "['xaxb', 'c']2['abc', 'ab', '']");
  EXPECT_EQ(render("{{ 'a' in '' }}{{ '' in '' }}{{ 'ab'.rfind('') }}{{ 'ab'.find('c') }}"), "FalseTrue2-1");
}

TEST(ChatTemplate, ObjectsOfALoopOutliveIt) {
  EXPECT_EQ(render("{% set ns = namespace(l=none) %}{% for x in [1, 2] %}{% set ns.l = loop %}{% endfor %}"
                   "{{ ns.l.length }}{{ ns.l.first }}"),
            "0False");
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me is defined }}"), "True");
}

}  // namespace
}  // namespace trireme::data
