// Grammars over bytes: what an answer may be, from JSON schemas, regular expressions, EBNF and lists of
// choices.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/json.h"

namespace trireme::data {

using ByteSet = std::bitset<256>;

/// A context-free grammar: every rule is alternatives, each a row of symbols.
struct Grammar {
  struct Symbol {
    bool is_rule = false;
    uint32_t index = 0;  ///< of a rule, or of a set of bytes
  };
  using Row = std::vector<Symbol>;
  struct Rule {
    std::string name;
    std::vector<Row> rows;
  };

  std::vector<Rule> rules;
  std::vector<ByteSet> sets;
  uint32_t root = 0;
};

/// Puts grammars together; all front ends end here. Throws exhausted above kMostSymbols: a repetition of a
/// repetition can ask for any number.
class GrammarBuilder {
 public:
  static constexpr size_t kMostSymbols = size_t{1} << 20;
  using Row = Grammar::Row;

  /// An empty rule, to be filled with set_rows().
  uint32_t add_rule(std::string name);
  void set_rows(uint32_t rule, std::vector<Row> rows);
  Row rule(uint32_t index) const { return {{true, index}}; }

  Row text(std::string_view bytes);
  Row bytes(const ByteSet& set);
  /// Characters first..last as UTF-8, several ranges; `negated`: all others.
  struct Range {
    char32_t first, last;
  };
  Row characters(std::vector<Range> ranges, bool negated = false);
  /// The same characters as JSON writes them inside a string: quote, backslash and controls by their escapes.
  Row json_characters(std::vector<Range> ranges, bool negated = false);
  Row any_of(std::vector<Row> rows);
  Row optional(Row row) { return any_of({std::move(row), {}}); }
  /// `row` at least `least` and at most `most` times; most < 0: any number.
  Row repeated(const Row& row, int64_t least, int64_t most);
  static Row joined(std::initializer_list<Row> rows);

  /// Another grammar, as a part of this one: its rules and sets, and what it begins with.
  Row append(const Grammar& part);
  /// Throws unsupported, naming the rule, where a rule begins with itself.
  Grammar build(uint32_t root);

 private:
  uint32_t set_of(const ByteSet& set);
  void count(size_t symbols);
  /// A repetition of what may be empty would begin with itself: it repeats what is not empty, which gives the
  /// same texts.
  void repeat_no_empty();

  Grammar grammar_;
  std::vector<uint32_t> repetitions_;  // rules of two rows: a rule and the repetition again, or nothing
  size_t symbols_ = 0;
};

/// One of these texts. Throws invalid_argument for none.
Grammar grammar_of_choices(const std::vector<std::string>& choices);
/// Texts that a regular expression matches as a whole: literals, classes, groups, | * + ? {m,n}, \d \w \s.
/// Throws unsupported for look-around, references back and anchors inside; invalid_argument for what is no
/// expression.
Grammar grammar_of_regex(std::string_view regex);
/// EBNF as llama.cpp writes it (GBNF): `root ::= "a" [b-z]* (item | other){1,3}`, a rule a line.
Grammar grammar_of_ebnf(std::string_view text);
/// JSON texts that a schema allows, members in the order of `properties`. Throws unsupported, by name, for
/// keywords that would be ignored otherwise. `lenient`: keywords and patterns that we do not do are left out
/// where they only restrict values further, so that more is allowed than the schema says.
Grammar grammar_of_schema(const base::Json& schema, bool lenient = false);

/// JSON objects of any members.
Grammar grammar_of_json_object();
/// Texts of one grammar or the other.
Grammar grammar_of_either(const Grammar& one, const Grammar& other);

/// How the characters that an expression matches are written.
enum class RegexText { plain, in_json_string };
/// Appends a regular expression to a grammar under construction.
Grammar::Row append_regex(GrammarBuilder& builder, std::string_view regex, RegexText text = RegexText::plain);

}  // namespace trireme::data
