// The word patterns as a scanner, which tries alternatives in the order of the regular expression.
#include "data/tokenizer/word_pattern.h"

#include <array>
#include <cstdint>

#include "base/utf8.h"
#include "data/tokenizer/characters.h"

namespace trireme::data {
namespace {

class Scanner {
 public:
  Scanner(std::string_view text, WordPattern pattern) : text_(text), pattern_(pattern) {
    for (char32_t c = 0; c < 128; ++c) ascii_[c] = character_classes(c);
  }

  void run(size_t offset, std::vector<size_t>& ends) const {
    for (size_t at = 0; at < text_.size();) {
      at = pattern_ == WordPattern::gpt2 ? gpt2_word(at) : llama_word(at);
      ends.push_back(offset + at);
    }
  }

 private:
  /// Classes of the character at `at`, and its end in `end`; 0 at the end of the text.
  uint8_t classes(size_t at, size_t& end) const {
    end = at;
    if (at >= text_.size()) return 0;
    const auto byte = static_cast<uint8_t>(text_[at]);
    if (byte < 0x80) {
      ++end;
      return ascii_[byte];
    }
    return character_classes(base::next_code_point(text_, end));
  }
  bool is(size_t at, uint8_t kind) const {
    size_t end;
    return (classes(at, end) & kind) != 0;
  }
  bool is_line_end(size_t at) const { return at < text_.size() && (text_[at] == '\r' || text_[at] == '\n'); }
  size_t run_end(size_t at, uint8_t kind) const {
    for (size_t end; (classes(at, end) & kind) != 0;) at = end;
    return at;
  }

  /// The position after 's, 't, 're, 've, 'm, 'll or 'd at `at`; `at` if there is none.
  size_t contraction(size_t at, bool any_case) const {
    if (text_[at] != '\'') return at;
    const std::string_view rest = text_.substr(at + 1, 2);
    // The long s (U+017F) folds to s.
    if (any_case && rest == "\xC5\xBF") return at + 3;
    const auto letter = [&](size_t i) -> char {
      const char c = i < rest.size() ? rest[i] : '\0';
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char a = letter(0), b = letter(1);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    const bool is_pair = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return is_pair ? at + 3 : at;
  }

  /// \s*[\r\n]+ where `splits_lines`, then \s+(?!\S)|\s+
  size_t space_run(size_t at, bool splits_lines) const {
    size_t last = at, behind_line = at, pos = at;
    for (size_t end; (classes(pos, end) & kSpace) != 0; pos = end) {
      last = pos;
      if (is_line_end(pos)) behind_line = end;
    }
    if (splits_lines && behind_line > at) return behind_line;
    return pos == text_.size() || last == at ? pos : last;
  }

  size_t gpt2_word(size_t at) const {
    if (const size_t end = contraction(at, false); end > at) return end;
    const size_t body = text_[at] == ' ' ? at + 1 : at;
    size_t end;
    const uint8_t kind = classes(body, end) & (kLetter | kNumber | kOther);
    return kind != 0 ? run_end(end, kind) : space_run(at, false);
  }

  size_t llama_word(size_t at) const {
    if (const size_t end = contraction(at, true); end > at) return end;
    size_t end;
    const uint8_t first = classes(at, end);
    if ((first & kLetter) != 0) return run_end(end, kLetter);
    if ((first & kNumber) != 0) {
      const int most = pattern_ == WordPattern::llama3 ? 3 : 1;
      size_t next;
      for (int digits = 1; digits < most && (classes(end, next) & kNumber) != 0; ++digits) end = next;
      return end;
    }
    if (!is_line_end(at) && is(end, kLetter)) return run_end(end, kLetter);
    const size_t body = text_[at] == ' ' ? at + 1 : at;
    if (is(body, kOther)) {
      size_t stop = run_end(body, kOther);
      while (is_line_end(stop)) ++stop;
      return stop;
    }
    return space_run(at, true);
  }

  std::string_view text_;
  WordPattern pattern_;
  std::array<uint8_t, 128> ascii_{};
};

}  // namespace

std::optional<WordPattern> pattern_of(std::string_view regex) {
  if (regex == kGpt2Words) return WordPattern::gpt2;
  if (regex == kLlama3Words || regex == kCl100kWords) return WordPattern::llama3;
  return regex == kQwen2Words ? std::optional(WordPattern::qwen2) : std::nullopt;
}

void append_word_ends(std::string_view text, WordPattern pattern, size_t offset, std::vector<size_t>& ends) {
  Scanner(text, pattern).run(offset, ends);
}

}  // namespace trireme::data
