// The form that a request wants its answers to have: a JSON object, what a schema or grammar allows, or calls
// of its tools.
#pragma once

#include <functional>
#include <string>

#include "data/grammar/grammar.h"
#include "serve/models/text_model.h"
#include "serve/openai/members.h"

namespace trireme::serve {

/// A form before it is compiled. Forms of equal sources are equal.
struct WantedForm {
  std::string source;                   ///< empty: any text
  std::string member;                   ///< of the request, which errors name
  std::function<data::Grammar()> read;  ///< throws what is wrong with it; takes time

  bool any() const { return !source.empty(); }
};

/// `response_format`, `structured_outputs` and the `guided_` members of vLLM. Throws MemberError for two
/// forms in one request, for what is of another type, and for sources of more than half a megabyte.
WantedForm read_form(const Members& members);

/// The format of the responses API: {"type", "schema", "strict"}, named `member`.
WantedForm form_of_format(const base::Json& format, std::string_view member);

/// What calls of tools must look like.
struct WantedCalls {
  base::Json tools;   ///< an array of {"function": {"name", "parameters", "strict"}}
  std::string name;   ///< of the only one that may be called; empty: any
  bool once = false;  ///< else several calls may follow each other
};

/// One call or several as the model writes them, and nothing else.
WantedForm form_of_calls(const WantedCalls& wanted, ToolForm form);
/// One form or the other.
WantedForm form_of_either(WantedForm one, WantedForm other);

/// The grammar of a form that is one, over the model's tokens. Throws MemberError.
std::shared_ptr<sched::AnswerGrammar> compile(const WantedForm& form, TextModel& model);

}  // namespace trireme::serve
