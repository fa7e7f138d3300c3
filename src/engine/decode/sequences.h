// The sequences of a decoding session: how long they are, which pages hold their keys and values, and which
// beginnings of texts are known from others.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/decode/decode_model.h"
#include "engine/decode/known_beginnings.h"
#include "engine/pages/kv_pool.h"

namespace trireme::engine {

using SequenceId = int32_t;

/// What the pages hold is the caller's matter. One owner thread.
class Sequences {
 public:
  struct Sequence {
    bool is_open = false;
    int64_t length = 0;
    std::vector<int32_t> pages;  ///< room for the longest sequence
    int32_t adapter = -1;        ///< slot; -1: none
    PageId root{};               ///< of the pages of known beginnings
  };

  /// At most options.max_sequences are open, each of at most `most_pages`. `pool` and `known`, which is over
  /// it, outlive it.
  Sequences(KvPool& pool, KnownBeginnings& known, const DecodeOptions& options, int64_t most_pages);

  /// Throws internal unless it is open.
  const Sequence& at(SequenceId id) const;
  /// A new sequence of no tokens. Throws exhausted if max_sequences are open.
  SequenceId open(const TextOrigin& origin);
  /// One that holds the pages of the longest known beginning of `prompt`, but for its last token.
  SequenceId open(std::span<const int64_t> prompt, const TextOrigin& origin);
  /// How many tokens of `prompt` open() would find, and which pages would be free then.
  struct Beginning {
    int64_t tokens = 0, free_pages = 0;
  };
  Beginning look(std::span<const int64_t> prompt, const TextOrigin& origin);
  /// Remembers the full pages of a sequence that ran `tokens` first, if pages are shared at all.
  void keep(SequenceId id, std::span<const int64_t> tokens);
  /// A sequence with the tokens of another, whose full pages both hold; `copy_page` is told of the other one.
  /// Throws exhausted.
  SequenceId fork(SequenceId from, const std::function<void(int32_t from, int32_t to)>& copy_page);
  /// Gives its pages back.
  void close(SequenceId id);
  /// Takes tokens back from its end, and the pages that held nothing else.
  void shrink(SequenceId id, int64_t length);
  /// Pages that `tokens` more would take.
  int64_t pages_for(SequenceId id, int64_t tokens) const;
  /// Takes them. Throws exhausted.
  void take_pages(SequenceId id, int64_t tokens);
  /// It has `tokens` more, which its pages hold.
  void grow(SequenceId id, int64_t tokens) { mutable_at(id).length += tokens; }

 private:
  Sequence& mutable_at(SequenceId id) { return const_cast<Sequence&>(at(id)); }

  KvPool& pool_;
  KnownBeginnings& known_;
  int64_t page_tokens_;
  std::vector<Sequence> sequences_;
};

}  // namespace trireme::engine
