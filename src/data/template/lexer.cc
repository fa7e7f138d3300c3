// Splits templates into tokens; trims white space around tags like trim_blocks and lstrip_blocks.
#include "data/template/lexer.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme::data::jinja {
namespace {

using TokenKind = TemplateToken::Kind;
constexpr size_t kMostSource = size_t{1} << 20;

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// Converts line ends to "\n", and removes one at the very end of the source.
std::string plain_lines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : in_(plain_lines(source)) {}

  std::vector<TemplateToken> run() {
    while (at_ < in_.size()) text();
    add(TokenKind::end, "");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const char* what) const { base::fail_invalid("template line ", line_, ": ", what); }
  std::string_view rest() const { return std::string_view(in_).substr(at_); }
  void add(TokenKind kind, std::string_view what) { out_.push_back({kind, std::string(what), line_}); }
  void advance(size_t to) {
    line_ += static_cast<int>(std::count(in_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         in_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  /// Reads text up to the next tag, and that tag.
  void text() {
    const size_t begin = at_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = in_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= in_.size()) tag = in_.size();
      if (tag == in_.size() || in_[tag + 1] == '%' || in_[tag + 1] == '{' || in_[tag + 1] == '#') break;
    }
    std::string_view text = std::string_view(in_).substr(begin, tag - begin);
    if (tag == in_.size()) {
      if (!text.empty()) add(TokenKind::text, text);
      return advance(tag);
    }
    const char kind = in_[tag + 1], sign = tag + 2 < in_.size() ? in_[tag + 2] : '\0';
    text = before_tag(text, kind, sign);
    if (!text.empty()) add(TokenKind::text, text);
    advance(tag + 2 + (sign == '-' || (sign == '+' && kind != '{') ? 1 : 0));
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
    add(kind == '%' ? TokenKind::block_begin : TokenKind::output_begin, "");
    inside(kind == '%' ? "%}" : "}}", kind == '%');
  }

  /// The part of the text before a tag that is kept.
  std::string_view before_tag(std::string_view text, char kind, char sign) const {
    if (sign == '-') {
      while (!text.empty() && is_ascii_space(text.back())) text.remove_suffix(1);
      return text;
    }
    if (sign == '+' || kind == '{') return text;
    const size_t line = text.rfind('\n') + 1;  // 0 if there is no line end
    const bool starts_line = line > 0 || is_line_start_;
    const std::string_view last = text.substr(line);
    return starts_line && std::all_of(last.begin(), last.end(), is_ascii_space) ? text.substr(0, line) : text;
  }

  /// After a tag's end: `strips_all` (a minus) skips all white space, `trims` skips one line end.
  void behind_tag(bool strips_all, bool trims) {
    size_t to = at_;
    while (strips_all && to < in_.size() && is_ascii_space(in_[to])) ++to;
    if (!strips_all && trims && to < in_.size() && in_[to] == '\n') ++to;
    advance(to);
    is_line_start_ = at_ > 0 && in_[at_ - 1] == '\n';
  }

  void comment() {
    const size_t end = in_.find("#}", at_);
    if (end == std::string::npos) fail("a comment has no end");
    const char sign = in_[end - 1];
    advance(end + 2);
    behind_tag(sign == '-', sign != '+');
  }

  /// {% raw %}...{% endraw %}: its text is copied unchanged. False if this is another block.
  bool raw() {
    size_t pos = at_;
    const auto skip_space = [&] {
      while (pos < in_.size() && is_ascii_space(in_[pos])) ++pos;
    };
    const auto tag_end = [&](std::string_view name) {
      skip_space();
      if (in_.compare(pos, name.size(), name) != 0) return false;
      pos += name.size();
      skip_space();
      if (pos < in_.size() && (in_[pos] == '-' || in_[pos] == '+')) ++pos;
      if (in_.compare(pos, 2, "%}") != 0) return false;
      pos += 2;
      return true;
    };
    if (!tag_end("raw")) return false;
    const char sign = in_[pos - 3];
    advance(pos);
    behind_tag(sign == '-', false);  // the line end belongs to the text
    for (size_t tag = in_.find("{%", at_); tag != std::string::npos; tag = in_.find("{%", tag + 2)) {
      pos = tag + 2;
      const char left = pos < in_.size() ? in_[pos] : '\0';
      if (left == '-' || left == '+') ++pos;
      if (!tag_end("endraw")) continue;
      const std::string_view text = before_tag(std::string_view(in_).substr(at_, tag - at_), '%', left);
      if (!text.empty()) add(TokenKind::text, text);
      const char right = in_[pos - 3];
      advance(pos);
      behind_tag(right == '-', right != '+');
      return true;
    }
    fail("raw has no endraw");
  }

  void inside(std::string_view close, bool is_block) {
    int brackets = 0;
    for (;;) {
      while (at_ < in_.size() && is_ascii_space(in_[at_])) advance(at_ + 1);
      if (at_ >= in_.size()) fail("a tag has no end");
      const char sign = in_[at_];
      const bool is_signed =
          (sign == '-' || (sign == '+' && is_block)) && rest().substr(1).starts_with(close);
      if (brackets == 0 && (is_signed || rest().starts_with(close))) {
        advance(at_ + close.size() + (is_signed ? 1 : 0));
        add(is_block ? TokenKind::block_end : TokenKind::output_end, "");
        return behind_tag(is_signed && sign == '-', is_block && !(is_signed && sign == '+'));
      }
      token(brackets);
    }
  }

  void token(int& brackets) {
    const char c = in_[at_];
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < in_.size() && (is_name_start(in_[end]) || is_digit(in_[end]))) ++end;
      add(TokenKind::name, std::string_view(in_).substr(at_, end - at_));
      return advance(end);
    }
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string(c);
    for (const std::string_view two : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (!rest().starts_with(two)) continue;
      add(TokenKind::symbol, two);
      return advance(at_ + 2);
    }
    if (std::string_view("+-*/%~<>=()[]{}|,.:").find(c) == std::string_view::npos)
      fail("an unexpected character");
    if (c == '(' || c == '[' || c == '{') ++brackets;
    if ((c == ')' || c == ']' || c == '}') && --brackets < 0) fail("a bracket that was not opened");
    add(TokenKind::symbol, rest().substr(0, 1));
    advance(at_ + 1);
  }

  void number() {
    size_t end = at_;
    std::string digits;
    const auto take = [&] {
      for (; end < in_.size() && (is_digit(in_[end]) || in_[end] == '_'); ++end) {
        if (in_[end] != '_') digits.push_back(in_[end]);
      }
    };
    take();
    bool is_real = false;
    // A number may be an index: in x.0.y it has no fraction.
    const bool is_index = !out_.empty() && out_.back().is(".");
    if (!is_index && end + 1 < in_.size() && in_[end] == '.' && is_digit(in_[end + 1])) {
      is_real = true;
      digits.push_back(in_[end++]);
      take();
    }
    if (!is_index && end < in_.size() && (in_[end] == 'e' || in_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < in_.size() && (in_[exponent] == '-' || in_[exponent] == '+')) ++exponent;
      if (exponent < in_.size() && is_digit(in_[exponent])) {
        is_real = true;
        digits += in_.substr(end, exponent - end);
        end = exponent;
        take();
      }
    }
    add(is_real ? TokenKind::real : TokenKind::integer, digits);
    advance(end);
  }

  void string(char quote) {
    std::string value;
    size_t at = at_ + 1;
    for (; at < in_.size() && in_[at] != quote; ++at) {
      if (in_[at] != '\\' || at + 1 >= in_.size()) {
        value.push_back(in_[at]);
        continue;
      }
      escape(at, value);
    }
    if (at >= in_.size()) fail("a string has no end");
    add(TokenKind::string, value);
    advance(at + 1);
  }

  /// Resolves one of Python's escapes; `at` moves to its last character.
  void escape(size_t& at, std::string& value) const {
    const char c = in_[++at];
    constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      value.push_back(kMeanings[known]);
      return;
    }
    if (c == '\n') return;
    const auto is_octal = [&](size_t i) { return i < in_.size() && in_[i] >= '0' && in_[i] <= '7'; };
    if (is_octal(at)) {
      char32_t code = static_cast<char32_t>(c - '0');
      for (int i = 1; i < 3 && is_octal(at + 1); ++i)
        code = code << 3 | static_cast<char32_t>(in_[++at] - '0');
      return base::append_utf8(value, code);
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      value.push_back('\\');
      value.push_back(c);
      return;
    }
    char32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char d = ++at < in_.size() ? in_[at] : '\0';
      const int digit = is_digit(d)            ? d - '0'
                        : d >= 'a' && d <= 'f' ? d - 'a' + 10
                        : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                               : -1;
      if (digit < 0) fail("an escape lacks digits");
      code = code << 4 | static_cast<char32_t>(digit);
    }
    base::append_utf8(value, code);
  }

  std::string in_;
  size_t at_ = 0;
  int line_ = 1;
  bool is_line_start_ = true;
  std::vector<TemplateToken> out_;
};

}  // namespace

std::vector<TemplateToken> tokens_of_template(std::string_view source) {
  base::require(source.size() <= kMostSource, "template of ", source.size(), " bytes; at most ", kMostSource);
  base::require(base::is_utf8(source), "template that is not UTF-8");
  return Lexer(source).run();
}

}  // namespace trireme::data::jinja
