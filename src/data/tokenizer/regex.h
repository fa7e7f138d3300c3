// Regular expressions that come from files: the dialect of tokenizer.json (Oniguruma's), matched in bounded
// time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data {

/// A compiled expression over UTF-8. Immutable; any thread. \s, \w, \d and \p{...} follow Unicode.
class Regex {
 public:
  struct Match {
    size_t begin, end;  // bytes
  };

  /// Throws invalid_argument for what is no expression, and for one above 16 KiB.
  explicit Regex(std::string_view pattern);

  /// The matches of one text, in their order; none is empty.
  class Scan {
   public:
    /// `text` is well-formed UTF-8 and outlives the scan.
    Scan(const Regex& regex, std::string_view text);
    ~Scan();
    Scan(const Scan&) = delete;
    Scan& operator=(const Scan&) = delete;
    /// Nothing when there are no more. Throws exhausted where one match takes more steps than
    /// 10000 + 64 for each byte of the text.
    std::optional<Match> next();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

/// The same expression in PCRE2's dialect: classes of characters as Oniguruma understands them, intersections
/// of classes as look-aheads. Throws unsupported for what has no counterpart.
std::string pcre_dialect(std::string_view pattern);

}  // namespace trireme::data
