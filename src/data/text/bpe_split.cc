// The word patterns as a scanner: each alternative is tried in the order of the regular expression.
#include "data/text/bpe_split.h"

#include <utf8proc.h>

#include <cstdint>

#include "base/utf8.h"

namespace trireme::data {
namespace {

constexpr std::string_view kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kLlama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kQwen2 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum class Class : uint8_t { letter, number, space, other };

Class class_of(char32_t code) {
  if (is_white_space(code)) return Class::space;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return Class::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return Class::number;
    default: return Class::other;
  }
}

struct Character {
  char32_t code;
  Class kind;
  size_t end;  // byte behind it
};

class Scanner {
 public:
  Scanner(std::string_view text, WordPattern pattern) : pattern_(pattern) {
    for (size_t pos = 0; pos < text.size();) {
      const char32_t code = base::next_code_point(text, pos);
      chars_.push_back({code, class_of(code), pos});
    }
  }

  void run(std::vector<size_t>& ends) {
    for (size_t at = 0; at < chars_.size();) {
      at = pattern_ == WordPattern::gpt2 ? gpt2_word(at) : llama_word(at);
      ends.push_back(chars_[at - 1].end);
    }
  }

 private:
  bool is(size_t i, Class kind) const { return i < chars_.size() && chars_[i].kind == kind; }
  bool is_line_end(size_t i) const {
    return i < chars_.size() && (chars_[i].code == '\r' || chars_[i].code == '\n');
  }
  size_t run_end(size_t i, Class kind) const {
    while (is(i, kind)) ++i;
    return i;
  }

  /// Behind 's, 't, 're, 've, 'm, 'll, 'd at `at`, or `at`.
  size_t contraction(size_t at, bool any_case) const {
    if (chars_[at].code != '\'') return at;
    const auto letter = [&](size_t i) -> char32_t {
      if (i >= chars_.size()) return 0;
      const char32_t c = chars_[i].code;
      if (any_case && c == 0x17F) return 's';  // the long s folds to s
      return any_case && c >= 'A' && c <= 'Z' ? c + 32 : c;
    };
    const char32_t a = letter(at + 1), b = letter(at + 2);
    if (a == 's' || a == 't') return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e')) return at + 3;
    if (a == 'm') return at + 2;
    if (a == 'l' && b == 'l') return at + 3;
    return a == 'd' ? at + 2 : at;
  }

  /// \s+(?!\S)|\s+
  size_t space_run(size_t at) const {
    const size_t end = run_end(at, Class::space);
    return end == chars_.size() || end == at + 1 ? end : end - 1;
  }

  size_t gpt2_word(size_t at) const {
    if (const size_t end = contraction(at, false); end > at) return end;
    const size_t body = chars_[at].code == ' ' ? at + 1 : at;
    for (Class kind : {Class::letter, Class::number, Class::other}) {
      if (is(body, kind)) return run_end(body, kind);
    }
    return space_run(at);
  }

  size_t llama_word(size_t at) const {
    if (const size_t end = contraction(at, true); end > at) return end;
    if (is(at, Class::letter)) return run_end(at, Class::letter);
    const bool is_number = is(at, Class::number);
    if (!is_number && !is_line_end(at) && is(at + 1, Class::letter)) return run_end(at + 1, Class::letter);
    if (is_number) {
      const size_t most = at + (pattern_ == WordPattern::llama3 ? 3 : 1), end = run_end(at, Class::number);
      return end < most ? end : most;
    }
    const size_t body = chars_[at].code == ' ' ? at + 1 : at;
    if (is(body, Class::other)) {
      size_t end = run_end(body, Class::other);
      while (is_line_end(end)) ++end;
      return end;
    }
    for (size_t end = run_end(at, Class::space); end > at; --end) {
      if (is_line_end(end - 1)) return end;
    }
    return space_run(at);
  }

  WordPattern pattern_;
  std::vector<Character> chars_;
};

}  // namespace

WordPattern pattern_of(std::string_view regex) {
  if (regex == kGpt2) return WordPattern::gpt2;
  if (regex == kLlama3) return WordPattern::llama3;
  return regex == kQwen2 ? WordPattern::qwen2 : WordPattern::none;
}

void append_word_ends(std::string_view text, WordPattern pattern, std::vector<size_t>& ends) {
  if (text.empty()) return;
  if (pattern == WordPattern::none)
    ends.push_back(text.size());
  else
    Scanner(text, pattern).run(ends);
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word_character(char32_t code) {
  const Class kind = class_of(code);
  return kind == Class::letter || kind == Class::number || code == '_';
}

}  // namespace trireme::data
