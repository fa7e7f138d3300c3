// Reads the form of an answer from options and files.
#include "cli/answer_form.h"

#include "base/error.h"
#include "base/files/file.h"

namespace trireme::cli {
namespace {

data::Grammar grammar_of(const AnswerFormOptions& o) {
  const size_t given = (o.json_schema.empty() ? 0 : 1) + (o.regex.empty() ? 0 : 1) +
                       (o.grammar.empty() ? 0 : 1) + (o.choice.empty() ? 0 : 1);
  base::require(given == 1, "an answer has one form: one of --json-schema, --regex, --grammar and --choice");
  if (!o.choice.empty()) return data::grammar_of_choices(o.choice);
  if (!o.regex.empty()) return data::grammar_of_regex(o.regex);
  const std::string& path = o.grammar.empty() ? o.json_schema : o.grammar;
  try {
    const std::string text = base::read_file(path);
    return o.grammar.empty() ? data::grammar_of_schema(base::parse_json(text)) : data::grammar_of_ebnf(text);
  } catch (const base::Error& e) {
    throw e.with("'" + path + "'");
  }
}

}  // namespace

void AnswerFormOptions::fields(base::OptionList& f) {
  f.add("json_schema", &json_schema, "file of a JSON schema: answers are JSON that it allows");
  f.add("regex", &regex, "answers are texts that this regular expression matches as a whole");
  f.add("grammar", &grammar, "file of a grammar in EBNF (GBNF), whose rule `root` answers follow");
  f.add("choice", &choice, "answers are one of these texts; to be given several times");
}

AnswerForm::AnswerForm(const AnswerFormOptions& options, const data::Tokenizer& tokenizer,
                       const std::vector<int64_t>& end) {
  data::Grammar grammar = grammar_of(options);
  base::require(!end.empty(), "an answer of fixed form needs a token that ends it: the model's eos_token_id");
  grammar_ = std::make_shared<sched::AnswerGrammar>(std::move(grammar),
                                                    std::make_shared<const data::TokenTrie>(tokenizer, end));
}

}  // namespace trireme::cli
