// The grammars that answers of one model followed lately.
#include "serve/generative/grammar_cache.h"

#include <utility>

#include "base/error.h"

namespace trireme::serve {

GrammarCache::GrammarCache(const data::Tokenizer& tokenizer, std::vector<int64_t> end, int64_t most_bytes)
    : tokenizer_(tokenizer), end_(std::move(end)), most_bytes_(most_bytes) {}

size_t GrammarCache::size() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

std::shared_ptr<const data::TokenTrie> GrammarCache::tokens() {
  const std::lock_guard lock(mutex_);
  if (end_.empty())
    base::fail_unsupported("an answer of fixed form needs a token that ends it, and the model names none");
  if (tokens_ == nullptr) {
    auto made = std::make_shared<const data::TokenTrie>(tokenizer_, end_);
    tokens_room_.resize(made->bytes());
    tokens_ = std::move(made);
  }
  return tokens_;
}

/// One that is full finds nothing new: it makes room for another of the same source.
std::shared_ptr<sched::AnswerGrammar> GrammarCache::known(const std::string& source) {
  const std::lock_guard lock(mutex_);
  const auto at = places_.find(source);
  if (at == places_.end() || at->second->grammar->is_full()) return nullptr;
  kept_.splice(kept_.begin(), kept_, at->second);
  return at->second->grammar;
}

void GrammarCache::keep(Kept kept) {
  const std::lock_guard lock(mutex_);
  if (const auto at = places_.find(kept.source); at != places_.end()) {
    const auto old = at->second;
    places_.erase(at);
    kept_.erase(old);
  }
  kept_.push_front(std::move(kept));
  places_[kept_.front().source] = kept_.begin();
  int64_t bytes = 0;
  for (const Kept& k : kept_) bytes += k.bytes();
  while (kept_.size() > 1 && (bytes > most_bytes_ || base::process_memory().is_tight())) {
    bytes -= kept_.back().bytes();
    places_.erase(kept_.back().source);
    kept_.pop_back();
  }
}

std::shared_ptr<sched::AnswerGrammar> GrammarCache::find(const std::string& source,
                                                         const std::function<data::Grammar()>& read) {
  if (auto found = known(source)) return found;
  std::shared_ptr<sched::AnswerGrammar> made;
  try {
    made = std::make_shared<sched::AnswerGrammar>(read(), tokens());
  } catch (const base::Error& e) {
    // A grammar of too many symbols is the fault of who sent it; readers may have said where it stands.
    if (e.code() != base::ErrorCode::exhausted || e.message().find("grammar") == std::string::npos) throw;
    throw base::Error(base::ErrorCode::invalid_argument, e.message());
  }
  keep({.source = source, .grammar = made});
  return made;
}

}  // namespace trireme::serve
