// The characters of an expression in Oniguruma's syntax, and how PCRE2 writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data {

/// A character that stands for itself, inside a class or outside.
std::string quoted(char32_t code);
/// The letters that a letter stands for where case is ignored, as PCRE2 writes them; empty where it is one:
/// "ss" of ß.
std::string letters_of(char32_t code);
/// The first two or three letters (of ASCII) that may be one where case is ignored, as PCRE2 writes both:
/// "ss" and ß. The longest; nothing where there are none.
struct Ligature {
  std::string_view letters, written;
};
std::optional<Ligature> ligature_at(std::string_view text);

/// Throws unsupported for what PCRE2 has no counterpart for.
[[noreturn]] void refuse_regex(std::string_view what);
/// Throws invalid_argument for what Oniguruma refuses as well.
[[noreturn]] void fail_regex(std::string_view what);

/// Reads an expression from left to right.
class PatternReader {
 public:
  explicit PatternReader(std::string_view in) : in_(in) {}

 protected:
  char peek(size_t i = 0) const { return at_ + i < in_.size() ? in_[at_ + i] : '\0'; }
  bool skip(std::string_view text);
  /// What an escape stands for, its backslash and letter read already.
  char32_t code_of(char kind);

  struct Interval {
    std::string text;
    bool is_fixed;  ///< {n}
  };
  /// {n}, {n,}, {,m} or {n,m} at this place, read up to its brace; nothing where the brace is a character.
  std::optional<Interval> read_interval();

  std::string_view in_;
  size_t at_ = 0;

 private:
  std::optional<char32_t> number(uint32_t base, size_t most);
  char32_t braced(uint32_t base);
  char32_t hex_code();
  char32_t four_digits();
};

}  // namespace trireme::data
