// The form that an answer must have: options, and the grammar behind them as a filter of tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/text/options.h"
#include "sched/text/grammar_filter.h"

namespace trireme::cli {

struct AnswerFormOptions {
  std::string json_schema, regex, grammar;
  std::vector<std::string> choice;

  void fields(base::OptionList& f);
  bool any() const { return !json_schema.empty() || !regex.empty() || !grammar.empty() || !choice.empty(); }
};

/// A form over one vocabulary; answers share what is found out about it. One thread.
class AnswerForm {
 public:
  /// Throws invalid_argument unless one form is given; what the grammars throw, naming the option.
  AnswerForm(const AnswerFormOptions& options, const data::Tokenizer& tokenizer,
             const std::vector<int64_t>& end);
  /// The filter of one answer.
  std::unique_ptr<engine::TokenFilter> filter() const { return sched::AnswerGrammar::filter(grammar_); }

 private:
  std::shared_ptr<sched::AnswerGrammar> grammar_;
};

}  // namespace trireme::cli
