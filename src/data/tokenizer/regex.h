// Regular expressions that come from files: the dialect of tokenizer.json (Oniguruma's), matched in bounded
// time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data {

/// A compiled expression over UTF-8, in Oniguruma's syntax as pcre_dialect() reads it. Immutable; any thread.
class Regex {
 public:
  struct Match {
    size_t begin, end;  // bytes
  };

  /// Throws invalid_argument for what is no expression, and for one above 16 KiB; unsupported as
  /// pcre_dialect().
  explicit Regex(std::string_view pattern);

  /// The matches of one text, in their order. One that is empty does not follow directly on another.
  class Scan {
   public:
    /// `text` is well-formed UTF-8 and outlives the scan.
    Scan(const Regex& regex, std::string_view text);
    ~Scan();
    Scan(const Scan&) = delete;
    Scan& operator=(const Scan&) = delete;
    /// Nothing when there are no more. Throws exhausted where the matches take many more steps, or look
    /// farther ahead, than texts of this size should need: some thousands for each byte.
    std::optional<Match> next();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace trireme::data
