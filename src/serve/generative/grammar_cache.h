// The grammars that answers of one model followed lately, by their sources.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sched/text/grammar_filter.h"

namespace trireme::serve {

/// Any thread. The grammars used last are kept, up to a number of bytes that they hold together, or until the
/// server's memory is short.
class GrammarCache {
 public:
  static constexpr int64_t kMostBytes = 128 << 20;

  /// `tokenizer` outlives it; `end`: tokens that end an answer.
  GrammarCache(const data::Tokenizer& tokenizer, std::vector<int64_t> end, int64_t most_bytes = kMostBytes);

  /// The grammar of a source, compiled by `read` where it is not known. Takes up to some tenths of a second.
  /// Throws invalid_argument and unsupported for what is wrong with it, also where it is too large, exhausted
  /// where memory is short.
  std::shared_ptr<sched::AnswerGrammar> find(const std::string& source,
                                             const std::function<data::Grammar()>& read);

  /// For tests and metrics: grammars that are kept.
  size_t size() const;

 private:
  struct Kept {
    std::string source;
    std::shared_ptr<sched::AnswerGrammar> grammar;
    int64_t bytes() const { return grammar->bytes() + static_cast<int64_t>(2 * source.size()); }
  };
  std::shared_ptr<const data::TokenTrie> tokens();
  std::shared_ptr<sched::AnswerGrammar> known(const std::string& source);
  void keep(Kept kept);

  const data::Tokenizer& tokenizer_;
  const std::vector<int64_t> end_;
  const int64_t most_bytes_;
  mutable std::mutex mutex_;                       // of what follows
  std::shared_ptr<const data::TokenTrie> tokens_;  // made when first asked for
  base::MemoryLease tokens_room_{base::MemoryUse::scratch, 0};
  std::list<Kept> kept_;  // used last comes first
  std::unordered_map<std::string_view, std::list<Kept>::iterator> places_;
};

}  // namespace trireme::serve
