// Regular expressions with PCRE2, its just-in-time compiler and a limit of steps.
#include "data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace trireme::data {
namespace {

constexpr size_t kMostPatternBytes = 16384;
constexpr uint64_t kFixedSteps = 10000, kStepsPerByte = 64;
constexpr int kDeepestClass = 16;

/// Unicode's White_Space, which PCRE2's \s exceeds by U+180E.
constexpr std::string_view kSpaces =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
/// Outside classes, Oniguruma also counts Latin-1's superscripts and fractions as word characters.
constexpr std::string_view kLoneWord =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

bool is_category(std::string_view name) {
  return name.size() <= 2 || name == "Any" || name == "Alphabetic" || name.starts_with("^");
}

/// Translates a pattern from Oniguruma's syntax to PCRE2's, from left to right.
class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  std::string run() {
    std::string out;
    while (at_ < in_.size()) {
      if (in_[at_] == '[') {
        out += character_class(0);
      } else if (in_[at_] == '\\') {
        out += escape(false);
      } else {
        out.push_back(in_[at_++]);
      }
    }
    return out;
  }

 private:
  /// An escape, inside or outside a class.
  std::string escape(bool in_class) {
    const char kind = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
    if (kind == 'p' || kind == 'P') return property();
    if (kind == 'b' && !in_class) {
      at_ += 2;
      return base::concat("(?:(?<=[", kLoneWord, "])(?![", kLoneWord, "])|(?<![", kLoneWord, "])(?=[",
                          kLoneWord, "]))");
    }
    const bool is_word = kind == 'w' || kind == 'W';
    const std::string_view set = kind == 's' || kind == 'S' ? kSpaces
                                 : !is_word                 ? ""
                                 : in_class                 ? kWord
                                                            : kLoneWord;
    if (set.empty()) {
      const size_t begin = at_;
      at_ = std::min(at_ + 2, in_.size());
      return std::string(in_.substr(begin, at_ - begin));
    }
    at_ += 2;
    const bool negated = kind == 'S' || kind == 'W';
    if (!in_class) return base::concat(negated ? "[^" : "[", set, "]");
    if (!negated) return std::string(set);
    return kind == 'S' ? "\\S" : "\\W";  // in a class: PCRE2's sets, which differ for rare characters only
  }

  /// \p{Han}: Oniguruma means the script, PCRE2 the script extensions.
  std::string property() {
    const size_t end = in_.find('}', at_);
    const bool is_named = at_ + 2 < in_.size() && in_[at_ + 2] == '{' && end != std::string_view::npos;
    const size_t stop = is_named ? end + 1 : std::min(at_ + 3, in_.size());
    const std::string_view whole = in_.substr(at_, stop - at_);
    at_ = stop;
    if (!is_named) return std::string(whole);
    const std::string_view name = whole.substr(3, whole.size() - 4);
    if (is_category(name)) return std::string(whole);
    return base::concat(whole.substr(0, 3), "sc:", name, "}");
  }

  /// Translates a class, starting at its bracket; `A&&B` becomes (?=[A])[B].
  std::string character_class(int depth) {
    if (depth > kDeepestClass) base::fail_unsupported("regular expression: classes nested too deeply");
    std::vector<std::string> sides;
    std::string body;
    size_t at = at_ + 1;
    const bool negated = at < in_.size() && in_[at] == '^';
    at_ = at + (negated ? 1 : 0);
    bool is_first = true, is_open = true;
    while (is_open && at_ < in_.size()) {
      const std::string_view rest = in_.substr(at_);
      if (rest[0] == ']' && !is_first) {
        ++at_;
        is_open = false;
      } else if (rest.starts_with("&&")) {
        at_ += 2;
        sides.push_back(closed(body));
        body.clear();
      } else if (rest[0] == '[' && !rest.starts_with("[:")) {
        if (!body.empty()) base::fail_unsupported("regular expression: a class beside others in a class");
        sides.push_back(character_class(depth + 1));
        if (in_.substr(at_, 1) != "]" && in_.substr(at_, 2) != "&&")
          base::fail_unsupported("regular expression: a class beside others in a class");
      } else if (rest.starts_with("[:")) {
        const size_t end = std::min(rest.find(":]"), rest.size() - 1) + 1;
        body += rest.substr(0, end + 1);
        at_ += std::min(end + 1, rest.size());
      } else if (rest[0] == '\\') {
        body += escape(true);
      } else {
        body.push_back(rest[0]);
        ++at_;
      }
      is_first = false;
    }
    if (is_open) base::fail_invalid("regular expression: a class has no end");
    if (sides.empty()) return base::concat(negated ? "[^" : "[", body, "]");
    return joined(std::move(sides), body, negated);
  }

  static std::string closed(const std::string& body) {
    return body.empty() ? std::string() : base::concat("[", body, "]");
  }

  static std::string joined(std::vector<std::string> sides, const std::string& body, bool negated) {
    if (!body.empty()) sides.push_back(closed(body));
    std::erase(sides, "");
    std::string all;
    for (size_t i = 0; i + 1 < sides.size(); ++i) all += "(?=" + sides[i] + ")";
    all += sides.back();
    return negated ? "(?:(?!" + all + ")[\\s\\S])" : "(?:" + all + ")";
  }

  std::string_view in_;
  size_t at_ = 0;
};

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  explicit Code(pcre2_code* from) : compiled(from) {}
  ~Code() { pcre2_code_free(compiled); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* compiled;
};

std::string pcre_dialect(std::string_view pattern) { return Translator(pattern).run(); }

Regex::Regex(std::string_view pattern) {
  base::require(pattern.size() <= kMostPatternBytes, "regular expression of ", pattern.size(),
                " bytes; at most ", kMostPatternBytes);
  const std::string text = pcre_dialect(pattern);
  int error = 0;
  size_t at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code == nullptr)
    base::fail_invalid("regular expression '", pattern, "': ", message_of(error), " at byte ", at);
  code_ = std::make_shared<Code>(code);
  // If the compiler does not support the processor, the interpreter matches, more slowly.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

struct Regex::Scan::State {
  std::shared_ptr<const Code> code;
  std::string_view text;
  size_t at = 0;
  pcre2_match_data* found;
  pcre2_match_context* limits;
};

Regex::Scan::Scan(const Regex& regex, std::string_view text) : state_(std::make_unique<State>()) {
  state_->code = regex.code_;
  state_->text = text;
  state_->found = pcre2_match_data_create(1, nullptr);
  state_->limits = pcre2_match_context_create(nullptr);
  const uint64_t steps = kFixedSteps + kStepsPerByte * static_cast<uint64_t>(text.size());
  pcre2_set_match_limit(state_->limits, static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
}

Regex::Scan::~Scan() {
  pcre2_match_context_free(state_->limits);
  pcre2_match_data_free(state_->found);
}

std::optional<Regex::Match> Regex::Scan::next() {
  State& s = *state_;
  while (s.at <= s.text.size()) {
    // A match ends at a character boundary, and the text was checked before: no UTF check is needed.
    const int result = pcre2_match(s.code->compiled, reinterpret_cast<PCRE2_SPTR>(s.text.data()),
                                   s.text.size(), s.at, PCRE2_NO_UTF_CHECK, s.found, s.limits);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      base::fail(base::ErrorCode::exhausted, "regular expression on ", s.text.size(),
                 " bytes: ", message_of(result));
    const size_t* ends = pcre2_get_ovector_pointer(s.found);
    const Match match{ends[0], ends[1]};
    if (match.end > match.begin) {
      s.at = match.end;
      return match;
    }
    s.at = match.begin + 1;
    while (s.at < s.text.size() && (static_cast<uint8_t>(s.text[s.at]) & 0xC0) == 0x80) ++s.at;
  }
  return std::nullopt;
}

}  // namespace trireme::data
