// Grammars written as EBNF, in the dialect of llama.cpp (GBNF).
#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "data/grammar/grammar.h"

namespace trireme::data {
namespace {

using Row = Grammar::Row;
constexpr int kDeepestEbnf = 100;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class EbnfReader {
 public:
  explicit EbnfReader(std::string_view in) : in_(in) {}

  Grammar run() {
    for (skip(true); at_ < in_.size(); skip(true)) {
      const std::string name = this->name();
      skip(false);
      if (in_.substr(at_, 3) != "::=") fail("'::=' expected");
      at_ += 3;
      skip(true);
      const uint32_t rule = rule_of(name);
      if (defined_[rule]) fail("the rule '" + name + "' twice");
      defined_[rule] = true;
      builder_.set_rows(rule, alternatives(false));
    }
    for (const auto& [name, rule] : rules_) {
      if (!defined_[rule]) base::fail_invalid("grammar: the rule '", name, "' is not there");
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) base::fail_invalid("grammar: the rule 'root' is not there");
    return builder_.build(root->second);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    const auto line =
        1 +
        std::count(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, in_.size())), '\n');
    base::fail_invalid("grammar line ", line, ": ", what);
  }
  char peek() const { return at_ < in_.size() ? in_[at_] : '\0'; }

  /// Skips white space and comments, and line ends only if the rule may continue on the next line.
  void skip(bool over_lines) {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '#') {
        at_ = std::min(in_.find('\n', at_), in_.size());
      } else if (c == ' ' || c == '\t' || (over_lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        break;
      }
    }
  }

  std::string name() {
    const size_t begin = at_;
    while (is_name(peek())) ++at_;
    if (at_ == begin) fail("a name expected");
    return std::string(in_.substr(begin, at_ - begin));
  }

  uint32_t rule_of(const std::string& name) {
    const auto known = rules_.find(name);
    if (known != rules_.end()) return known->second;
    const uint32_t rule = builder_.add_rule(name);
    rules_.emplace(name, rule);
    defined_[rule] = false;
    return rule;
  }

  std::vector<Row> alternatives(bool in_group) {
    if (++depth_ > kDeepestEbnf) fail("nested too deeply");
    std::vector<Row> rows{sequence(in_group)};
    while (peek() == '|') {
      ++at_;
      skip(true);
      rows.push_back(sequence(in_group));
    }
    --depth_;
    return rows;
  }

  Row sequence(bool in_group) {
    Row row;
    for (;;) {
      const char c = peek();
      Row one;
      if (c == '"') {
        one = builder_.text(quoted());
      } else if (c == '[') {
        one = character_class();
      } else if (c == '.') {
        ++at_;
        one = builder_.characters({}, true);
      } else if (c == '(') {
        ++at_;
        skip(true);
        one = builder_.any_of(alternatives(true));
        if (peek() != ')') fail("')' expected");
        ++at_;
      } else if (is_name(c)) {
        one = builder_.rule(rule_of(name()));
      } else {
        if (at_ < in_.size() && c != '|' && c != ')' && c != '\n' && c != '\r')
          fail("an unexpected character");
        return row;
      }
      one = times(std::move(one));
      row.insert(row.end(), one.begin(), one.end());
      skip(in_group);
    }
  }

  Row times(Row one) {
    const char c = peek();
    if (c == '*' || c == '+' || c == '?') {
      ++at_;
      return builder_.repeated(one, c == '+' ? 1 : 0, c == '?' ? 1 : -1);
    }
    if (c != '{') return one;
    ++at_;
    const int64_t least = number();
    int64_t most = least;
    if (peek() == ',') {
      ++at_;
      most = peek() == '}' ? -1 : number();
    }
    if (peek() != '}') fail("'}' expected");
    ++at_;
    if (most >= 0 && most < least) fail("fewer at most than at least");
    return builder_.repeated(one, least, most);
  }

  int64_t number() {
    int64_t value = 0;
    const size_t begin = at_;
    for (; peek() >= '0' && peek() <= '9' && at_ - begin < 5; ++at_) value = value * 10 + (peek() - '0');
    if (at_ == begin) fail("a number expected");
    return value;
  }

  /// Reads one character of a text or class, and resolves escapes.
  char32_t character() {
    if (at_ >= in_.size()) fail("it ends inside a text or class");
    if (peek() != '\\') return base::next_code_point(in_, at_);
    ++at_;
    const char c = peek();
    ++at_;
    constexpr std::string_view kLetters = "nrt\\\"[]-^'", kMeanings = "\n\r\t\\\"[]-^'";
    if (const size_t known = kLetters.find(c); known != std::string_view::npos)
      return static_cast<char32_t>(kMeanings[known]);
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) fail("an unknown escape");
    char32_t code = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char d = peek();
      const int digit = d >= '0' && d <= '9'   ? d - '0'
                        : d >= 'a' && d <= 'f' ? d - 'a' + 10
                        : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                               : -1;
      if (digit < 0) fail("an escape lacks digits");
      code = code << 4 | static_cast<char32_t>(digit);
    }
    return code;
  }

  std::string quoted() {
    std::string text;
    for (++at_; peek() != '"';) base::append_utf8(text, character());
    ++at_;
    return text;
  }

  Row character_class() {
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    std::vector<GrammarBuilder::Range> ranges;
    while (peek() != ']') {
      const char32_t first = character();
      char32_t last = first;
      if (peek() == '-' && at_ + 1 < in_.size() && in_[at_ + 1] != ']') {
        ++at_;
        last = character();
      }
      if (last < first) fail("a range that ends before it begins");
      ranges.push_back({first, last});
    }
    ++at_;
    return builder_.characters(std::move(ranges), negated);
  }

  GrammarBuilder builder_;
  std::string_view in_;
  size_t at_ = 0;
  int depth_ = 0;
  std::map<std::string, uint32_t> rules_;
  std::map<uint32_t, bool> defined_;
};

}  // namespace

Grammar grammar_of_ebnf(std::string_view text) {
  base::require(base::is_utf8(text), "grammar that is not UTF-8");
  return EbnfReader(text).run();
}

}  // namespace trireme::data
