// Drafts tokens with a smaller model that has the same vocabulary.
#include "engine/decode/draft_model.h"

#include <algorithm>
#include <cstdlib>

#include "engine/decode/prompt_lookup.h"

namespace trireme::engine {

DraftModel::DraftModel(std::unique_ptr<DecodeSession> session, int64_t vocabulary)
    : session_(std::move(session)), vocabulary_(vocabulary) {
  // Models of a family pad their vocabularies by different amounts.
  constexpr int64_t kMostFilling = 1024;
  const int64_t own = session_->vocabulary();
  base::require(std::abs(own - vocabulary) <= kMostFilling,
                "the draft has another vocabulary than the model: ", own, " tokens and ", vocabulary);
}

DraftModel::~DraftModel() {
  for (const auto& [number, text] : texts_) {
    if (text.sequence >= 0) session_->close(text.sequence);
  }
}

void DraftModel::forget(int64_t number) {
  const auto at = texts_.find(number);
  if (at == texts_.end()) return;
  if (at->second.sequence >= 0) session_->close(at->second.sequence);
  texts_.erase(at);
}

/// Makes the text's sequence hold a prefix of its tokens and nothing else; null if it has no sequence.
DraftModel::Text* DraftModel::follow(const DraftWish& wish) {
  Text& t = texts_[wish.text];
  const std::span<const int64_t> tokens = wish.tokens;
  const auto size = static_cast<int64_t>(tokens.size());
  if (t.sequence < 0 && !t.is_strange) {
    t.is_strange = std::any_of(wish.biases.begin(), wish.biases.end(),
                               [&](const TokenBias& b) { return b.token >= session_->vocabulary(); });
    const int64_t page = session_->options().page_tokens;
    if (t.is_strange || (size + wish.most + page - 1) / page > session_->free_pages()) return nullptr;
    t.sequence = session_->open(tokens);
    t.read = static_cast<size_t>(session_->length(t.sequence));
  }
  if (t.is_strange) return nullptr;
  size_t same = 0;
  while (same < t.ahead.size() && t.read + same + 1 < tokens.size() && t.ahead[same] == tokens[t.read + same])
    ++same;
  t.read += same;
  t.ahead.clear();
  session_->shrink(t.sequence, static_cast<int64_t>(t.read));
  const std::span<const int64_t> unread = tokens.subspan(t.read);
  t.is_strange = size > session_->max_length() || std::any_of(unread.begin(), unread.end(), [&](int64_t id) {
                   return id >= session_->vocabulary();
                 });
  if (!t.is_strange) return &t;
  drop(t);
  return nullptr;
}

/// Frees the pages of a text; it is read again once there are pages for all of it.
void DraftModel::drop(Text& text) {
  session_->close(text.sequence);
  text = {.is_strange = text.is_strange};
}

/// Reads the new tokens of each text; texts that are read completely draw their first draft.
void DraftModel::begin(std::span<const DraftWish> wishes) {
  under_.clear();
  pieces_.clear();
  for (const DraftWish& wish : wishes) {
    if (Text* text = follow(wish)) under_.push_back({&wish, text});
  }
  // Texts with few unread tokens go first, so that they need not wait for long prompts.
  const auto unread = [](const Under& u) { return u.wish->tokens.size() - u.text->read; };
  std::stable_sort(under_.begin(), under_.end(),
                   [&](const Under& a, const Under& b) { return unread(a) < unread(b); });
  int64_t left = session_->options().max_tokens, pages = session_->free_pages();
  std::vector<Under> drawing;
  for (Under& u : under_) {
    const auto all = static_cast<int64_t>(unread(u));
    const int64_t now = std::min(all, left), needed = session_->pages_for(u.text->sequence, now);
    if (now == 0) continue;
    if (needed > pages) {
      drop(*u.text);
      continue;
    }
    left -= now;
    pages -= needed;
    DecodePiece piece{.sequence = u.text->sequence,
                      .tokens = u.wish->tokens.subspan(u.text->read, static_cast<size_t>(now))};
    u.text->read += static_cast<size_t>(now);
    if (now == all) {
      piece.sampling = u.wish->sampling;
      piece.position = u.wish->position;
      piece.biases = u.wish->biases;
      u.row = pieces_.size();
      drawing.push_back(u);
    }
    pieces_.push_back(piece);
  }
  under_ = std::move(drawing);
}

/// Texts that need more drafts run the token that they drew last.
void DraftModel::go_on() {
  pieces_.clear();
  int64_t pages = session_->free_pages();
  std::erase_if(under_, [&](Under& u) {
    const std::vector<int64_t>& drafts = *u.wish->drafts;
    const int64_t needed = session_->pages_for(u.text->sequence, 1);
    const bool is_over = static_cast<int64_t>(drafts.size()) == u.wish->most || drafts.empty() ||
                         drafts.size() == u.text->ahead.size() || needed > pages ||
                         drafts.back() >= session_->vocabulary() ||
                         session_->length(u.text->sequence) == session_->max_length();
    if (is_over) return true;
    pages -= needed;
    u.row = pieces_.size();
    u.text->ahead.push_back(drafts.back());
    pieces_.push_back({.sequence = u.text->sequence,
                       .tokens = {&u.text->ahead.back(), 1},
                       .sampling = u.wish->sampling,
                       .position = u.wish->position + static_cast<int64_t>(drafts.size()),
                       .biases = u.wish->biases});
    return false;
  });
}

void DraftModel::draft(std::span<const DraftWish> wishes) {
  for (begin(wishes); !pieces_.empty(); go_on()) {
    session_->launch(pieces_);
    const DecodeSession::Drawn drawn = session_->collect();
    for (const Under& u : under_) {
      if (drawn.tokens[u.row] < vocabulary_) u.wish->drafts->push_back(drawn.tokens[u.row]);
      if (!u.text->is_kept) session_->keep(u.text->sequence, u.wish->tokens);
      u.text->is_kept = true;
    }
  }
}

DecodeOptions draft_options(DecodeOptions o, const SpeculationOptions& options) {
  o.strategy = o.strategy.over({});
  o.mesh = nullptr;
  o.service = nullptr;
  o.counts_ahead = false;  // its guesses are one behind another
  o.max_adapters = 0;      // it guesses by itself
  o.cache_bytes = options.draft_cache_bytes.bytes;
  o.cache_share = 0.125;
  return o;
}

std::unique_ptr<Drafter> make_drafter(const SpeculationOptions& options, int64_t vocabulary,
                                      std::shared_ptr<const DecodeModel> draft,
                                      const DecodeOptions& session) {
  switch (options.speculate) {
    case Speculation::off: return nullptr;
    case Speculation::lookup: return std::make_unique<PromptLookup>(options.lookup_tokens);
    case Speculation::draft:
      return std::make_unique<DraftModel>(std::make_unique<DecodeSession>(std::move(draft), session),
                                          vocabulary);
  }
  return nullptr;
}

}  // namespace trireme::engine
