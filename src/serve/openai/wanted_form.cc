// Reads the form that a request demands of its answers.
#include "serve/openai/wanted_form.h"

#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace trireme::serve {
namespace {

using base::Json;
using data::GrammarBuilder;
using Row = data::Grammar::Row;

constexpr size_t kMostSource = 512 << 10;

WantedForm form(std::string kind, std::string_view source, std::string member,
                std::function<data::Grammar()> read) {
  if (source.size() > kMostSource)
    fail_member(member, base::concat("has ", source.size(), " bytes; at most ", kMostSource));
  return {.source = kind + ":" + std::string(source), .member = std::move(member), .read = std::move(read)};
}

WantedForm json_object(std::string_view member) {
  return form("object", "", std::string(member), data::grammar_of_json_object);
}

/// Reads a schema, or the text of one. Without `strict`, unsupported parts of it are ignored.
WantedForm schema_form(const Json& given, bool strict, std::string_view member) {
  Json schema = given;
  if (given.is_string()) {
    try {
      schema = base::parse_json(given.as_string());
    } catch (const base::Error& e) {
      fail_member(member, "is no JSON: " + e.message());
    }
  }
  if (!schema.is_object() && !schema.is_bool()) fail_member(member, "expected a JSON schema");
  const std::string source = schema.dump();
  return form(strict ? "strict" : "schema", source, std::string(member),
              [schema = std::move(schema), strict] { return data::grammar_of_schema(schema, !strict); });
}

std::string string_of(const Json& value, std::string_view member) {
  if (!value.is_string()) fail_member(member, base::concat("expected a string, found ", value.type_name()));
  return value.as_string();
}

WantedForm regex_form(const Json& value, std::string_view member) {
  const std::string text = string_of(value, member);
  return form("regex", text, std::string(member), [text] { return data::grammar_of_regex(text); });
}

WantedForm ebnf_form(const Json& value, std::string_view member) {
  const std::string text = string_of(value, member);
  return form("ebnf", text, std::string(member), [text] { return data::grammar_of_ebnf(text); });
}

WantedForm choice_form(const Json& value, std::string_view member) {
  if (!value.is_array() || value.size() == 0) fail_member(member, "expected a list that is not empty");
  std::vector<std::string> choices;
  for (const Json& one : value.as_array()) choices.push_back(string_of(one, member));
  return form("choice", value.dump(), std::string(member),
              [choices = std::move(choices)] { return data::grammar_of_choices(choices); });
}

bool is_strict(const Json& of) {
  const Json* strict = of.find("strict");
  return strict != nullptr && strict->is_bool() && strict->as_bool();
}

WantedForm response_form(const Json& format) {
  constexpr std::string_view kMember = "response_format";
  const Json* type = format.find("type");
  if (type == nullptr || !type->is_string()) fail_member(kMember, "has no type");
  if (type->as_string() == "text") return {};
  if (type->as_string() == "json_object") {
    // llama.cpp's server accepts a schema here.
    const Json* schema = format.find("schema");
    return schema == nullptr || schema->is_null() ? json_object(kMember)
                                                  : schema_form(*schema, false, kMember);
  }
  if (type->as_string() != "json_schema")
    refuse_member(kMember, "only text, json_object and json_schema are served");
  const Json* of = format.find("json_schema");
  const Json* schema = of == nullptr ? nullptr : of->find("schema");
  if (schema == nullptr) fail_member(kMember, "json_schema has no schema");
  return schema_form(*schema, is_strict(*of), kMember);
}

/// Reads vLLM's newer member, of which exactly one part is given.
WantedForm structured_form(const Json& outputs) {
  constexpr std::string_view kMember = "structured_outputs";
  if (!outputs.is_object()) fail_member(kMember, "expected an object");
  WantedForm found;
  for (const auto& [key, value] : outputs.as_object()) {
    const bool is_off = value.is_null() || (value.is_bool() && !value.as_bool());
    if (is_off) continue;
    if (found.any()) fail_member(kMember, "has two forms");
    if (key == "json") {
      found = schema_form(value, true, kMember);
    } else if (key == "regex") {
      found = regex_form(value, kMember);
    } else if (key == "choice") {
      found = choice_form(value, kMember);
    } else if (key == "grammar") {
      found = ebnf_form(value, kMember);
    } else if (key == "json_object") {
      found = json_object(kMember);
    } else {
      refuse_member(kMember, "'" + key + "' is not served");
    }
  }
  return found;
}

/// The arguments that several tools may have, by their schemas.
using KnownArguments = std::map<std::string, Row>;

/// Appends {"name": "f", "arguments": ...} with the key names that the form uses.
Row append_call(GrammarBuilder& b, const Json& function, ToolForm form, KnownArguments& known) {
  const Json* parameters = function.find("parameters");
  const bool has_schema = parameters != nullptr && parameters->is_object() && parameters->size() > 0;
  const auto [at, is_new] =
      known.try_emplace(has_schema ? (is_strict(function) ? "strict" : "") + parameters->dump() : "");
  if (is_new)
    at->second = b.append(has_schema ? data::grammar_of_schema(*parameters, !is_strict(function))
                                     : data::grammar_of_json_object());
  const std::string head = "{\"name\": " + function.at("name").dump() + ", \"" +
                           (form == ToolForm::bare ? "parameters" : "arguments") + "\": ";
  const bool is_tagged = form == ToolForm::tagged;
  return GrammarBuilder::joined({b.text(is_tagged ? "<tool_call>\n" + head : head), at->second,
                                 b.text(is_tagged ? "}\n</tool_call>" : "}")});
}

data::Grammar grammar_of_calls(const WantedCalls& wanted, ToolForm form) {
  GrammarBuilder b;
  KnownArguments known;
  std::vector<Row> calls;
  for (const Json& tool : wanted.tools.as_array()) {
    const Json& function = tool.at("function");
    if (!wanted.name.empty() && function.at("name").as_string() != wanted.name) continue;
    try {
      calls.push_back(append_call(b, function, form, known));
    } catch (const base::Error& e) {
      throw e.with("tool '" + function.at("name").as_string() + "'");
    }
  }
  base::require(!calls.empty(), "no tool is named '", wanted.name, "'");
  const uint32_t call = b.add_rule("call");
  b.set_rows(call, std::move(calls));
  Row all = b.rule(call);
  if (!wanted.once) {
    const char* between = form == ToolForm::tagged ? "\n" : form == ToolForm::bare ? "; " : ", ";
    all = GrammarBuilder::joined(
        {all, b.repeated(GrammarBuilder::joined({b.text(between), b.rule(call)}), 0, -1)});
  }
  if (form == ToolForm::array) all = GrammarBuilder::joined({b.text("["), all, b.text("]")});
  const uint32_t root = b.add_rule("root");
  b.set_rows(root, {all});
  return b.build(root);
}

}  // namespace

WantedForm form_of_format(const Json& format, std::string_view member) {
  const Json* type = format.find("type");
  if (type == nullptr || !type->is_string()) fail_member(member, "has no type");
  if (type->as_string() == "text") return {};
  if (type->as_string() == "json_object") return json_object(member);
  if (type->as_string() != "json_schema")
    refuse_member(member, "only text, json_object and json_schema are served");
  const Json* schema = format.find("schema");
  if (schema == nullptr) fail_member(member, "json_schema has no schema");
  return schema_form(*schema, is_strict(format), member);
}

WantedForm read_form(const Members& m) {
  using Read = std::function<WantedForm(const Json&)>;
  const std::initializer_list<std::pair<const char*, Read>> kinds = {
      {"response_format", response_form},
      {"structured_outputs", structured_form},
      {"guided_json", [](const Json& j) { return schema_form(j, true, "guided_json"); }},
      {"guided_regex", [](const Json& j) { return regex_form(j, "guided_regex"); }},
      {"guided_choice", [](const Json& j) { return choice_form(j, "guided_choice"); }},
      {"guided_grammar", [](const Json& j) { return ebnf_form(j, "guided_grammar"); }},
  };
  WantedForm found;
  for (const auto& [member, read] : kinds) {
    const Json* given = m.find(member);
    if (given == nullptr) continue;
    WantedForm form = read(*given);
    if (form.any() && found.any())
      fail_member(member, "stands beside " + found.member + ": one form at a time");
    if (form.any()) found = std::move(form);
  }
  if (m.flag("guided_json_object")) fail_member("guided_json_object", "is response_format json_object here");
  return found;
}

WantedForm form_of_calls(const WantedCalls& wanted, ToolForm how) {
  const char* kinds[] = {"tagged", "bare", "array"};
  const std::string kind = std::string("calls ") + kinds[static_cast<size_t>(how)] +
                           (wanted.once ? " once " : " ") + Json(wanted.name).dump();
  return form(kind, wanted.tools.dump(), "tools", [wanted, how] { return grammar_of_calls(wanted, how); });
}

WantedForm form_of_either(WantedForm one, WantedForm other) {
  return {
      .source = "either:" + std::to_string(one.source.size()) + ":" + one.source + other.source,
      .member = one.member,
      .read = [first = one.read, second = other.read] { return data::grammar_of_either(first(), second()); }};
}

std::shared_ptr<sched::AnswerGrammar> compile(const WantedForm& form, TextModel& model) {
  try {
    return model.grammar(form.source, form.read);
  } catch (const base::Error& e) {
    throw MemberError(e.code(), form.member, e.message());
  }
}

}  // namespace trireme::serve
