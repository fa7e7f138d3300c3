// Unigram (Kudo 2018): the best path through the lattice of a piece's tokens.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"
#include "data/text/piece_trie.h"
#include "data/tokenizer/characters.h"
#include "data/tokenizer/piece_model.h"

namespace trireme::data {
namespace {

/// An unknown character costs this much more than the least likely token.
constexpr double kUnknownPenalty = 10;

class Unigram : public PieceModel {
 public:
  Unigram(const std::vector<std::string>& tokens, std::vector<double> scores, UnigramRules rules)
      : trie_(without_missing(tokens, scores)),
        vocabulary_(tokens),
        scores_(std::move(scores)),
        rules_(rules) {
    double least = std::numeric_limits<double>::infinity();
    for (const double score : scores_) {
      if (score > -std::numeric_limits<double>::infinity()) least = std::min(least, score);
    }
    unknown_score_ = rules_.least_score.value_or(least) - kUnknownPenalty;
    for (size_t byte = 0; byte < 256; ++byte)
      byte_ids_[byte] = vocabulary_.find(name_of_byte(static_cast<uint8_t>(byte)));
  }

  void append(std::string_view piece, std::vector<int64_t>& ids) const override {
    rules_.is_single ? walk<float>(piece, ids) : walk<double>(piece, ids);
  }

 private:
  template <class Score>
  struct Node {
    Score score = 0;
    size_t from = SIZE_MAX;
    int32_t id = Vocabulary::kNone;
  };

  static std::vector<std::string> without_missing(const std::vector<std::string>& tokens,
                                                  const std::vector<double>& scores) {
    base::require(scores.size() == tokens.size(), "Unigram of ", tokens.size(), " tokens with ",
                  scores.size(), " scores");
    std::vector<std::string> kept(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      base::require(!(scores[i] != scores[i]) && scores[i] < std::numeric_limits<double>::infinity(),
                    "the score of token ", i, " is no number");
      if (scores[i] > -std::numeric_limits<double>::infinity()) kept[i] = tokens[i];
    }
    return kept;
  }

  template <class Score>
  void walk(std::string_view piece, std::vector<int64_t>& ids) const {
    std::vector<Node<Score>> ends(piece.size() + 1);  // the best path to each byte
    const auto offer = [&](size_t from, size_t to, int32_t id, Score score) {
      if (ends[to].from == SIZE_MAX || score > ends[to].score) ends[to] = {score, from, id};
    };
    for (size_t at = 0, next = 0; at < piece.size(); at = next) {
      base::next_code_point(piece, next);
      bool has_character = false;
      uint32_t node = PieceTrie::kRoot;
      for (size_t end = at; end < piece.size();) {
        node = trie_.step(node, piece[end++]);
        if (node == PieceTrie::kRoot) break;
        const int32_t id = trie_.piece_at(node);
        if (id == PieceTrie::kNoPiece) continue;
        offer(at, end, id, static_cast<Score>(scores_[static_cast<size_t>(id)]) + ends[at].score);
        has_character = has_character || end == next;
      }
      if (!has_character)
        offer(at, next, rules_.unknown, static_cast<Score>(unknown_score_) + ends[at].score);
    }
    append_path(piece, ends, ids);
  }

  template <class Score>
  void append_path(std::string_view piece, const std::vector<Node<Score>>& ends,
                   std::vector<int64_t>& ids) const {
    std::vector<size_t> path;  // ends of tokens, last first
    for (size_t end = piece.size(); end > 0; end = ends[end].from) path.push_back(end);
    size_t run = SIZE_MAX;  // start of adjacent unknown characters
    for (auto end = path.rbegin(); end != path.rend(); ++end) {
      const Node<Score>& node = ends[*end];
      if (node.id == rules_.unknown) {
        run = std::min(run, node.from);
        const bool goes_on = std::next(end) != path.rend() && ends[*std::next(end)].id == rules_.unknown;
        if (!goes_on) append_unknown(piece.substr(run, *end - run), ids);
        continue;
      }
      run = SIZE_MAX;
      ids.push_back(node.id);
    }
  }

  void append_unknown(std::string_view text, std::vector<int64_t>& ids) const {
    const auto has_byte = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] != Vocabulary::kNone; };
    if (rules_.byte_fallback && std::all_of(text.begin(), text.end(), has_byte)) {
      for (const char c : text) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
    } else if (rules_.unknown != Vocabulary::kNone) {
      ids.push_back(rules_.unknown);
    }
  }

  PieceTrie trie_;
  Vocabulary vocabulary_;
  std::vector<double> scores_;
  UnigramRules rules_;
  double unknown_score_ = 0;
  int32_t byte_ids_[256];
};

}  // namespace

std::unique_ptr<PieceModel> unigram_model(const std::vector<std::string>& tokens, std::vector<double> scores,
                                          UnigramRules rules) {
  return std::make_unique<Unigram>(tokens, std::move(scores), rules);
}

}  // namespace trireme::data
