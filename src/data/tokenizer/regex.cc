// Regular expressions with PCRE2, its just-in-time compiler and bounds on the work for a text.
#include "data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/regex_dialect.h"

namespace trireme::data {
namespace {

constexpr size_t kMostPatternBytes = 16384;
/// Steps of a match, and bytes that it may look at, which cost nothing; what goes beyond is counted.
constexpr uint32_t kFreeSteps = 2000;
constexpr size_t kFreeBytes = 4096;
/// What all matches of a text may cost: as much as its square up to a limit, and so much a byte.
constexpr uint64_t kFixedCost = 1000000, kMostSquare = 64000000, kCostPerByte = 64;
/// Where the stack that compiled expressions have at first is too small.
constexpr size_t kStackBytes = 32768, kMostStackBytes = 1 << 20;

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

Regex::Regex(std::string_view pattern) {
  base::require(pattern.size() <= kMostPatternBytes, "regular expression of ", pattern.size(),
                " bytes; at most ", kMostPatternBytes);
  std::string text;
  try {
    text = pcre_dialect(pattern);
  } catch (const base::Error& e) {
    throw e.with(base::concat("'", pattern, "'"));
  }
  int error = 0;
  size_t at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code == nullptr)
    base::fail_invalid("regular expression '", pattern, "': ", message_of(error), " at byte ", at);
  code_ = std::make_shared<Code>(code);
  // If the compiler does not support the processor, the interpreter matches, more slowly.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
}

struct Regex::Scan::State {
  std::shared_ptr<const Code> code;
  std::string_view text;
  size_t at = 0;
  size_t last_end = std::string_view::npos;  ///< of the last match
  uint64_t cost = 0;                         ///< that is left
  size_t bytes = kFreeBytes;                 ///< that a search sees at first
  uint32_t options = PCRE2_NO_UTF_CHECK;     // ends are borders of characters, and the text was checked
  pcre2_match_data* found = nullptr;
  pcre2_match_context* limits = nullptr;
  pcre2_jit_stack* stack = nullptr;

  Match match() const {
    const size_t* ends = pcre2_get_ovector_pointer(found);
    return {std::max(ends[0], at), ends[1]};
  }

  void spend(uint64_t more) {
    if (more > cost) {
      base::fail(base::ErrorCode::exhausted, "regular expression on ", text.size(),
                 " bytes: its matches take too many steps or look too far ahead");
    }
    cost -= more;
  }

  /// The first character that begins at `place` or later.
  size_t border(size_t place) const {
    while (place < text.size() && (static_cast<uint8_t>(text[place]) & 0xC0) == 0x80) ++place;
    return place;
  }

  /// More room for the places to which a match may come back; the interpreter keeps them in the heap.
  void grow_stack() {
    if (stack != nullptr) {
      options |= PCRE2_NO_JIT;
      return;
    }
    stack = pcre2_jit_stack_create(kStackBytes, kMostStackBytes, nullptr);
    pcre2_jit_stack_assign(limits, nullptr, stack);
    if (stack == nullptr) options |= PCRE2_NO_JIT;
  }

  /// The code of pcre2_match() for the text from `from`, cut off at `end`.
  int attempt(size_t from, size_t end) {
    const uint32_t partial = end < text.size() ? PCRE2_PARTIAL_HARD : 0;
    for (uint32_t steps = kFreeSteps;;) {
      pcre2_set_match_limit(limits, steps);
      const int result = pcre2_match(code->compiled, reinterpret_cast<PCRE2_SPTR>(text.data()), end, from,
                                     options | partial, found, limits);
      if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
        grow_stack();
        continue;
      }
      if (result != PCRE2_ERROR_MATCHLIMIT) return result;
      steps = std::min(steps, UINT32_MAX / 4) * 4;
      spend(steps);
    }
  }

  /// The next match from `at` on. It sees no more of the text than it needs, so that what it looks at is
  /// known: a match that would look beyond the end of what it sees is a partial one.
  std::optional<Match> search() {
    size_t from = at;
    bytes = std::max(bytes / 2, kFreeBytes);
    for (;;) {
      if (bytes > kFreeBytes) spend(std::min(bytes, text.size() - from));
      const size_t end = text.size() - from <= bytes ? text.size() : border(from + bytes);
      const int result = attempt(from, end);
      if (result == PCRE2_ERROR_NOMATCH) {
        if (end == text.size()) return std::nullopt;
        from = end;
        bytes = kFreeBytes;
        continue;
      }
      // An empty match at the end has looked at nothing, so that it is not partial.
      const bool looks_on = result == PCRE2_ERROR_PARTIAL || (result >= 0 && match().end == end);
      if (looks_on && end < text.size()) {
        bytes *= 2;
        continue;
      }
      if (result < 0) {
        base::fail(base::ErrorCode::exhausted, "regular expression on ", text.size(),
                   " bytes: ", message_of(result));
      }
      return match();
    }
  }
};

Regex::Scan::Scan(const Regex& regex, std::string_view text) : state_(std::make_unique<State>()) {
  state_->code = regex.code_;
  state_->text = text;
  const uint64_t size = text.size();
  state_->cost = kFixedCost + kCostPerByte * size + std::min(size * std::min(size, kMostSquare), kMostSquare);
  state_->found = pcre2_match_data_create(1, nullptr);
  state_->limits = pcre2_match_context_create(nullptr);
}

Regex::Scan::~Scan() {
  pcre2_jit_stack_free(state_->stack);
  pcre2_match_context_free(state_->limits);
  pcre2_match_data_free(state_->found);
}

std::optional<Regex::Match> Regex::Scan::next() {
  State& s = *state_;
  while (s.at <= s.text.size()) {
    const std::optional<Match> match = s.search();
    if (!match) break;
    if (match->begin == match->end && match->end == s.last_end) {
      s.at = s.border(s.at + 1);
      continue;
    }
    s.at = s.last_end = match->end;
    return match;
  }
  s.at = s.text.size() + 1;
  return std::nullopt;
}

}  // namespace trireme::data
