// Finds added tokens by the longest match in a trie.
#include "data/tokenizer/added_tokens.h"

#include <algorithm>

#include "base/utf8.h"
#include "data/tokenizer/characters.h"

namespace trireme::data {
namespace {

std::vector<std::string> contents_of(const std::vector<SpecialToken>& tokens) {
  std::vector<std::string> contents;
  for (const SpecialToken& token : tokens) contents.push_back(token.content);
  return contents;
}

bool is_inside_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    size_t before = previous_character(text, begin);
    if (is_word_character(base::next_code_point(text, before))) return true;
  }
  return end < text.size() && is_word_character(base::next_code_point(text, end));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<SpecialToken> tokens)
    : tokens_(std::move(tokens)), trie_(contents_of(tokens_)) {
  for (const SpecialToken& token : tokens_) {
    if (!token.content.empty()) begins_[static_cast<uint8_t>(token.content[0])] = true;
  }
}

std::optional<AddedTokens::Found> AddedTokens::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<uint8_t>(text[at])]) continue;
    const SpecialToken* longest = nullptr;
    uint32_t node = PieceTrie::kRoot;
    for (size_t end = at; end < text.size();) {
      node = trie_.step(node, text[end++]);
      if (node == PieceTrie::kRoot) break;
      if (trie_.piece_at(node) != PieceTrie::kNoPiece)
        longest = &tokens_[static_cast<size_t>(trie_.piece_at(node))];
    }
    if (longest == nullptr) continue;
    const size_t end = at + longest->content.size();
    if (longest->single_word && is_inside_word(text, at, end)) {
      at = end - 1;
      continue;
    }
    return Found{longest->lstrip ? skip_space_left(text, from, at) : at,
                 longest->rstrip ? skip_space_right(text, end) : end, longest};
  }
  return std::nullopt;
}

}  // namespace trireme::data
