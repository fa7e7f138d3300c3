// WordPiece: greedy longest-match segmentation with a trie, special tokens in text, truncation.
#include "data/text/wordpiece.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme::data {
namespace {

size_t count_chars(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

/// A word character as regular expressions understand \w.
bool is_word_char(char32_t code) {
  const utf8proc_category_t c = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  const bool is_joiner = code == 0x200C || code == 0x200D;  // within words of some scripts
  return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_ND) || c == UTF8PROC_CATEGORY_PC || is_joiner;
}

bool is_space(char32_t code) {
  const utf8proc_category_t c = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return (c >= UTF8PROC_CATEGORY_ZS && c <= UTF8PROC_CATEGORY_ZP) || (code >= 9 && code <= 13) ||
         code == 0x85;
}

/// Start of the character that ends at `end`.
size_t previous_char(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (text[at] & 0xC0) == 0x80) --at;
  return at;
}

bool word_before(std::string_view text, size_t pos) {
  if (pos == 0) return false;
  size_t at = previous_char(text, pos);
  return is_word_char(base::next_code_point(text, at));
}

bool word_after(std::string_view text, size_t pos) {
  return pos < text.size() && is_word_char(base::next_code_point(text, pos));
}

size_t skip_space_left(std::string_view text, size_t pos, size_t stop) {
  while (pos > stop) {
    const size_t start = previous_char(text, pos);
    size_t at = start;
    if (!is_space(base::next_code_point(text, at))) break;
    pos = start;
  }
  return std::max(pos, stop);
}

size_t skip_space_right(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t next = pos;
    if (!is_space(base::next_code_point(text, next))) break;
    pos = next;
  }
  return pos;
}

/// How many tokens of each text remain by Hugging Face's "longest first": the shorter text is cut only if
/// both are longer than half of the room.
void share_room(size_t room, size_t& first, size_t& second) {
  if (first + second <= room) return;
  const bool swapped = first > second;
  size_t shorter = std::min(first, second);
  size_t longer = shorter > room ? shorter : std::max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = room / 2;
    longer = shorter + room % 2;
  }
  first = swapped ? longer : shorter;
  second = swapped ? shorter : longer;
}

}  // namespace

WordPiece::WordPiece(std::vector<std::string> vocab, WordPieceOptions options, std::vector<AddedToken> added)
    : options_(std::move(options)),
      vocab_(std::move(vocab)),
      trie_(vocab_),
      continuation_(trie_.node_of(options_.prefix)),
      text_(options_.text),
      added_(std::move(added)) {
  const auto id_of = [&](const std::string& token) {
    for (const AddedToken& a : added_) {
      if (a.content == token) return a.id;
    }
    const std::optional<int64_t> id = find(token);
    base::require(id.has_value(), "vocabulary has no token '", token, "'");
    return *id;
  };
  unk_ = id_of(options_.unk);
  cls_ = id_of(options_.cls);
  sep_ = id_of(options_.sep);
  pad_ = id_of(options_.pad);
  std::stable_sort(added_.begin(), added_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  for (const AddedToken& a : added_) {
    base::require(!a.content.empty(), "added token is empty");
    added_first_[static_cast<uint8_t>(a.content[0])] = true;
  }
}

std::optional<int64_t> WordPiece::find(std::string_view token) const {
  const std::optional<uint32_t> node = trie_.node_of(token);
  if (!node || trie_.piece_at(*node) == PieceTrie::kNoPiece) return std::nullopt;
  return trie_.piece_at(*node);
}

const std::string& WordPiece::token(int64_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= vocab_.size()) {
    base::fail(base::ErrorCode::not_found, "no token has id ", id);
  }
  return vocab_[static_cast<size_t>(id)];
}

const AddedToken* WordPiece::added_at(std::string_view text, size_t pos) const {
  if (!added_first_[static_cast<uint8_t>(text[pos])]) return nullptr;
  for (const AddedToken& a : added_) {
    if (text.substr(pos).starts_with(a.content)) return &a;
  }
  return nullptr;
}

std::vector<int64_t> WordPiece::tokenize(std::string_view text) const {
  std::vector<int64_t> ids;
  BertWords scratch;
  size_t plain = 0;  // where the text since the last added token begins
  for (size_t pos = 0; pos < text.size();) {
    const AddedToken* a = added_at(text, pos);
    if (a == nullptr) {
      ++pos;
      continue;
    }
    const size_t start = a->lstrip ? skip_space_left(text, pos, plain) : pos;
    size_t stop = pos + a->content.size();
    // A match that is not a word of its own is skipped as a whole, as the original's scanner does.
    const bool refused = a->single_word && (word_before(text, pos) || word_after(text, stop));
    if (!refused) {
      if (a->rstrip) stop = skip_space_right(text, stop);
      append_plain(text.substr(plain, start - plain), scratch, ids);
      ids.push_back(a->id);
      plain = stop;
    }
    pos = stop;
  }
  append_plain(text.substr(plain), scratch, ids);
  return ids;
}

void WordPiece::append_plain(std::string_view text, BertWords& scratch, std::vector<int64_t>& ids) const {
  scratch.clear();
  text_.append_words(text, scratch);
  for (size_t i = 0; i < scratch.size(); ++i) append_word(scratch[i], ids);
}

void WordPiece::append_word(std::string_view word, std::vector<int64_t>& ids) const {
  const size_t before = ids.size();
  const size_t limit = options_.max_chars_per_word;
  bool known = word.size() <= limit || count_chars(word) <= limit;
  for (size_t pos = 0; known && pos < word.size();) {
    // The longest piece that starts here; inside a word the walk begins after the prefix.
    uint32_t node = pos == 0 ? PieceTrie::kRoot : continuation_.value_or(PieceTrie::kRoot);
    known = pos == 0 || continuation_.has_value();
    int32_t best = PieceTrie::kNoPiece;
    size_t best_end = pos;
    for (size_t at = pos; known && at < word.size();) {
      node = trie_.step(node, word[at++]);
      if (node == PieceTrie::kRoot) break;
      if (trie_.piece_at(node) == PieceTrie::kNoPiece) continue;
      best = trie_.piece_at(node);
      best_end = at;
    }
    known = best != PieceTrie::kNoPiece;
    ids.push_back(best);
    pos = best_end;
  }
  if (known) return;
  ids.resize(before);
  ids.push_back(unk_);
}

size_t WordPiece::length_limit(size_t max_length, size_t special) const {
  const size_t limit = max_length == 0 ? options_.max_length : max_length;
  if (limit == 0) return SIZE_MAX;
  base::require(limit >= special, "maximum length is too small for the special tokens: ", limit, ", need ",
                special);
  return limit - special;
}

Encoding WordPiece::encode(std::string_view text, size_t max_length) const {
  const size_t room = length_limit(max_length, 2);
  Encoding out;
  out.ids = tokenize(text);
  if (out.ids.size() > room) out.ids.resize(room);
  out.ids.insert(out.ids.begin(), cls_);
  out.ids.push_back(sep_);
  out.type_ids.assign(out.ids.size(), 0);
  out.attention_mask.assign(out.ids.size(), 1);
  return out;
}

Encoding WordPiece::encode_pair(std::string_view first, std::string_view second, size_t max_length) const {
  return join(tokenize(first), tokenize(second), max_length);
}

Encoding WordPiece::join(std::span<const int64_t> a, std::span<const int64_t> b, size_t max_length) const {
  const size_t room = length_limit(max_length, 3);
  size_t a_size = a.size(), b_size = b.size();
  share_room(room, a_size, b_size);
  Encoding out;
  out.ids.reserve(a_size + b_size + 3);
  out.ids.push_back(cls_);
  out.ids.insert(out.ids.end(), a.begin(), a.begin() + static_cast<std::ptrdiff_t>(a_size));
  out.ids.push_back(sep_);
  out.type_ids.assign(out.ids.size(), 0);
  out.ids.insert(out.ids.end(), b.begin(), b.begin() + static_cast<std::ptrdiff_t>(b_size));
  out.ids.push_back(sep_);
  out.type_ids.resize(out.ids.size(), 1);
  out.attention_mask.assign(out.ids.size(), 1);
  return out;
}

}  // namespace trireme::data
