// The sequences of a decoding session and their pages.
#include "engine/decode/sequences.h"

namespace trireme::engine {

Sequences::Sequences(KvPool& pool, KnownBeginnings& known, const DecodeOptions& options, int64_t most_pages)
    : pool_(pool),
      known_(known),
      page_tokens_(options.page_tokens),
      sequences_(static_cast<size_t>(options.max_sequences)) {
  for (Sequence& s : sequences_) s.pages.reserve(static_cast<size_t>(most_pages));
}

const Sequences::Sequence& Sequences::at(SequenceId id) const {
  base::check(
      id >= 0 && static_cast<size_t>(id) < sequences_.size() && sequences_[static_cast<size_t>(id)].is_open,
      "there is no open sequence ", id);
  return sequences_[static_cast<size_t>(id)];
}

SequenceId Sequences::open(const TextOrigin& origin) {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].is_open) continue;
    sequences_[i].is_open = true;
    sequences_[i].length = 0;
    sequences_[i].adapter = origin.adapter == nullptr ? -1 : origin.adapter->slot();
    sequences_[i].root = known_.root(origin);
    return static_cast<SequenceId>(i);
  }
  base::fail(base::ErrorCode::exhausted, "no more sequences can be open at a time than ", sequences_.size());
}

SequenceId Sequences::open(std::span<const int64_t> prompt, const TextOrigin& origin) {
  const SequenceId id = open(origin);
  Sequence& made = mutable_at(id);
  known_.take(prompt, made.root, made.pages);
  made.length = static_cast<int64_t>(made.pages.size()) * page_tokens_;
  return id;
}

Sequences::Beginning Sequences::look(std::span<const int64_t> prompt, const TextOrigin& origin) {
  const std::span<const int32_t> pages = known_.find(prompt, known_.root(origin));
  Beginning found{static_cast<int64_t>(pages.size()) * page_tokens_, known_.free_pages()};
  for (int32_t page : pages) found.free_pages -= pool_.holders(page) == 1 ? 1 : 0;
  return found;
}

void Sequences::keep(SequenceId id, std::span<const int64_t> tokens) {
  const Sequence& s = at(id);
  base::check(static_cast<int64_t>(tokens.size()) <= s.length, "sequence ", id, " ran ", s.length,
              " tokens, not ", tokens.size());
  known_.keep(tokens, s.pages, s.root);
}

SequenceId Sequences::fork(SequenceId from, const std::function<void(int32_t, int32_t)>& copy_page) {
  const SequenceId id = open(TextOrigin{});
  const Sequence& old = at(from);
  Sequence& made = mutable_at(id);
  const size_t full = static_cast<size_t>(old.length / page_tokens_);
  try {
    for (size_t i = 0; i < old.pages.size(); ++i) {
      made.pages.push_back(i < full ? old.pages[i] : known_.take_page());
      if (i < full) pool_.share(old.pages[i]);
      if (i >= full) copy_page(old.pages[i], made.pages[i]);
    }
  } catch (const base::Error&) {
    close(id);
    throw;
  }
  made.length = old.length;
  made.adapter = old.adapter;
  made.root = old.root;
  return id;
}

void Sequences::close(SequenceId id) {
  Sequence& s = mutable_at(id);
  for (int32_t page : s.pages) pool_.release(page);
  s.pages.clear();
  s.is_open = false;
}

void Sequences::shrink(SequenceId id, int64_t length) {
  Sequence& s = mutable_at(id);
  base::check(length >= 0 && length <= s.length, "sequence ", id, " has ", s.length, " tokens, not ", length);
  s.length = length;
  for (const auto needed = static_cast<size_t>((length + page_tokens_ - 1) / page_tokens_);
       s.pages.size() > needed;) {
    pool_.release(s.pages.back());
    s.pages.pop_back();
  }
}

int64_t Sequences::pages_for(SequenceId id, int64_t tokens) const {
  const Sequence& s = at(id);
  return (s.length + tokens + page_tokens_ - 1) / page_tokens_ - static_cast<int64_t>(s.pages.size());
}

void Sequences::take_pages(SequenceId id, int64_t tokens) {
  const int64_t more = pages_for(id, tokens);
  for (int64_t i = 0; i < more; ++i) mutable_at(id).pages.push_back(known_.take_page());
}

}  // namespace trireme::engine
