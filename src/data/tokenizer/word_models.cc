// WordPiece, and models whose tokens are whole words.
#include <algorithm>

#include "data/text/piece_trie.h"
#include "data/tokenizer/piece_model.h"

namespace trireme::data {
namespace {

void append_known(int32_t id, std::vector<int64_t>& ids) {
  if (id != Vocabulary::kNone) ids.push_back(id);
}

class WordPieceModel : public PieceModel {
 public:
  WordPieceModel(const std::vector<std::string>& tokens, WordPieceRules rules)
      : trie_(tokens), rules_(std::move(rules)), continuation_(trie_.node_of(rules_.prefix)) {}

  void append(std::string_view word, std::vector<int64_t>& ids) const override {
    const size_t before = ids.size();
    const auto characters =
        std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xC0) != 0x80; });
    bool is_known = static_cast<size_t>(characters) <= rules_.most_characters;
    for (size_t at = 0; is_known && at < word.size();) {
      int32_t longest = Vocabulary::kNone;
      size_t end = at;
      is_known = at == 0 || continuation_.has_value();
      uint32_t node = at == 0 ? PieceTrie::kRoot : continuation_.value_or(PieceTrie::kRoot);
      for (size_t pos = at; is_known && pos < word.size();) {
        node = trie_.step(node, word[pos++]);
        if (node == PieceTrie::kRoot) break;
        if (trie_.piece_at(node) == PieceTrie::kNoPiece) continue;
        longest = trie_.piece_at(node);
        end = pos;
      }
      is_known = longest != Vocabulary::kNone;
      if (is_known) ids.push_back(longest);
      at = end;
    }
    if (is_known) return;
    ids.resize(before);
    append_known(rules_.unknown, ids);
  }

 private:
  PieceTrie trie_;
  WordPieceRules rules_;
  std::optional<uint32_t> continuation_;
};

class WordLevel : public PieceModel {
 public:
  WordLevel(const std::vector<std::string>& tokens, int32_t unknown)
      : vocabulary_(tokens), unknown_(unknown) {}
  void append(std::string_view word, std::vector<int64_t>& ids) const override {
    const int32_t id = vocabulary_.find(word);
    append_known(id == Vocabulary::kNone ? unknown_ : id, ids);
  }

 private:
  Vocabulary vocabulary_;
  int32_t unknown_;
};

}  // namespace

std::unique_ptr<PieceModel> word_piece_model(const std::vector<std::string>& tokens, WordPieceRules rules) {
  return std::make_unique<WordPieceModel>(tokens, std::move(rules));
}

std::unique_ptr<PieceModel> word_level_model(const std::vector<std::string>& tokens, int32_t unknown) {
  return std::make_unique<WordLevel>(tokens, unknown);
}

}  // namespace trireme::data
