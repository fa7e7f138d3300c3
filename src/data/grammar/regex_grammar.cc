// Translates regular expressions to grammars.
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/utf8.h"
#include "data/grammar/grammar.h"

namespace trireme::data {
namespace {

using Range = GrammarBuilder::Range;
using Row = Grammar::Row;
constexpr int kDeepestRegex = 100;
constexpr int64_t kMostTimes = 10000;

class RegexReader {
 public:
  RegexReader(GrammarBuilder& builder, std::string_view in, RegexText text)
      : builder_(builder), in_(in), text_(text) {}

  Row run() {
    if (peek() == '^') ++at_;
    Row row = alternatives();
    if (at_ < in_.size()) fail("a bracket that was not opened");
    return row;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    base::fail_invalid("regular expression '", in_.substr(0, 80), "' at byte ", at_, ": ", what);
  }
  [[noreturn]] void refuse(std::string_view what) const {
    base::fail_unsupported("regular expression '", in_.substr(0, 80), "': ", what);
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool has() const { return at_ < in_.size(); }
  char32_t character() {
    if (!has()) fail("it ends too early");
    return base::next_code_point(in_, at_);
  }

  Row characters(std::vector<Range> ranges, bool negated) {
    return text_ == RegexText::plain ? builder_.characters(std::move(ranges), negated)
                                     : builder_.json_characters(std::move(ranges), negated);
  }

  Row alternatives() {
    if (++depth_ > kDeepestRegex) fail("nested too deeply");
    std::vector<Row> rows{sequence()};
    while (peek() == '|' && has()) {
      ++at_;
      rows.push_back(sequence());
    }
    --depth_;
    return builder_.any_of(std::move(rows));
  }

  Row sequence() {
    Row row;
    while (has() && peek() != '|' && peek() != ')') {
      if (peek() == '$') {
        if (at_ + 1 != in_.size()) refuse("'$' inside");
        ++at_;
        break;
      }
      const Row one = times(atom());
      row.insert(row.end(), one.begin(), one.end());
    }
    return row;
  }

  Row times(Row one) {
    int64_t least = 1, most = 1;
    if (peek() == '*') {
      least = 0, most = -1;
      ++at_;
    } else if (peek() == '+') {
      most = -1;
      ++at_;
    } else if (peek() == '?') {
      least = 0;
      ++at_;
    } else if (is_interval()) {
      ++at_;
      least = number(0);
      most = least;
      if (peek() == ',') {
        ++at_;
        most = peek() == '}' ? -1 : number(0);
      }
      if (peek() != '}') fail("'}' expected");
      ++at_;
    } else {
      return one;
    }
    if (peek() == '?' || peek() == '+') ++at_;  // lazy or possessive: accepts the same texts
    if (peek() == '*' || is_interval()) fail("a repetition of a repetition");
    return builder_.repeated(one, least, most);
  }

  /// Whether a repetition begins here: {m}, {m,}, {,n} or {m,n}. Any other brace is a character.
  bool is_interval() const {
    if (peek() != '{') return false;
    const std::string_view rest = in_.substr(at_ + 1);
    const size_t end = std::min(rest.find_first_not_of("0123456789"), rest.size());
    if (end < rest.size() && rest[end] == '}') return end > 0;
    if (end >= rest.size() || rest[end] != ',') return false;
    const size_t last = rest.find_first_not_of("0123456789", end + 1);
    return last != std::string_view::npos && rest[last] == '}';
  }

  int64_t number(int64_t otherwise) {
    int64_t value = otherwise;
    const auto [end, error] = std::from_chars(in_.data() + at_, in_.data() + in_.size(), value);
    if (error == std::errc::invalid_argument && peek() == ',') return otherwise;
    if (error != std::errc() || value < 0 || value > kMostTimes) fail("a number of times");
    at_ = static_cast<size_t>(end - in_.data());
    return value;
  }

  Row atom() {
    const char c = peek();
    if (c == '(') return group();
    if (c == '[') return character_class();
    if (c == '^') refuse("'^' inside");
    if (c == '*' || c == '+' || c == '?' || is_interval()) fail("nothing to repeat");
    if (c == '.') {
      ++at_;
      return characters({{'\n', '\n'}}, true);
    }
    if (c != '\\') {
      const char32_t code = character();
      return characters({{code, code}}, false);
    }
    bool negated = false;
    std::vector<Range> ranges = escape(negated);
    return characters(std::move(ranges), negated);
  }

  Row group() {
    ++at_;
    if (peek() == '?') {
      if (peek(1) != ':') refuse("a group that looks around or has a name or options");
      at_ += 2;
    }
    Row row = alternatives();
    if (peek() != ')') fail("')' expected");
    ++at_;
    return row;
  }

  /// An escape as ranges of characters.
  std::vector<Range> escape(bool& negated) {
    ++at_;
    const char c = peek();
    if (!has()) fail("an escape of nothing");
    switch (c) {
      case 'd':
      case 'D': ++at_, negated = c == 'D'; return {{'0', '9'}};
      case 'w':
      case 'W': ++at_, negated = c == 'W'; return {{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}};
      case 's':
      case 'S': ++at_, negated = c == 'S'; return {{'\t', '\r'}, {' ', ' '}};
      case 'n': ++at_; return {{'\n', '\n'}};
      case 'r': ++at_; return {{'\r', '\r'}};
      case 't': ++at_; return {{'\t', '\t'}};
      case 'f': ++at_; return {{'\f', '\f'}};
      case 'v': ++at_; return {{'\v', '\v'}};
      case 'x':
      case 'u': return {hex(c == 'x' ? 2 : 4)};
      default: break;
    }
    if ((c >= '1' && c <= '9') || c == 'k') refuse("a reference back");
    if (c == 'b' || c == 'B' || c == 'A' || c == 'Z') refuse("an anchor inside");
    if (c == 'p' || c == 'P') refuse("a property of Unicode");
    const bool has_meaning = c == '0' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (has_meaning) refuse(base::concat("the escape \\", std::string_view(&c, 1)));
    const char32_t code = character();
    return {{code, code}};
  }

  Range hex(int digits) {
    ++at_;
    uint32_t code = 0;
    const size_t end = std::min(in_.size(), at_ + static_cast<size_t>(digits));
    const auto [stop, error] = std::from_chars(in_.data() + at_, in_.data() + end, code, 16);
    if (error != std::errc() || stop != in_.data() + at_ + digits) fail("an escape lacks digits");
    at_ = end;
    return {code, code};
  }

  /// The last character of a range.
  char32_t range_end() {
    if (peek() != '\\') return character();
    bool inverts = false;
    const std::vector<Range> last = escape(inverts);
    if (inverts || last.size() != 1 || last[0].first != last[0].last) fail("a range that ends in a class");
    return last[0].first;
  }

  /// All other characters.
  static std::vector<Range> complement(std::vector<Range> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
    std::vector<Range> others;
    char32_t next = 0;
    for (const Range& r : ranges) {
      if (r.first > next) others.push_back({next, r.first - 1});
      next = std::max<char32_t>(next, r.last + 1);
    }
    others.push_back({next, 0x10FFFF});
    return others;
  }

  Row character_class() {
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    std::vector<Range> ranges;
    for (bool is_first = true; is_first || peek() != ']'; is_first = false) {
      if (!has()) fail("a class has no end");
      bool inverts = false;
      std::vector<Range> some;
      if (peek() == '\\') {
        some = escape(inverts);
      } else {
        const char32_t code = character();
        some = {{code, code}};
      }
      if (inverts) some = complement(std::move(some));
      const bool is_range =
          peek() == '-' && peek(1) != ']' && some.size() == 1 && some[0].first == some[0].last;
      if (is_range) {
        ++at_;
        some[0].last = range_end();
        if (some[0].last < some[0].first) fail("a range that ends before it begins");
      }
      ranges.insert(ranges.end(), some.begin(), some.end());
    }
    ++at_;
    return characters(std::move(ranges), negated);
  }

  GrammarBuilder& builder_;
  std::string_view in_;
  RegexText text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Row append_regex(GrammarBuilder& builder, std::string_view regex, RegexText text) {
  base::require(base::is_utf8(regex), "regular expression that is not UTF-8");
  return RegexReader(builder, regex, text).run();
}

Grammar grammar_of_regex(std::string_view regex) {
  GrammarBuilder builder;
  const uint32_t root = builder.add_rule("root");
  builder.set_rows(root, {append_regex(builder, regex)});
  return builder.build(root);
}

}  // namespace trireme::data
