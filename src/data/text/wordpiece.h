// WordPiece tokenization of BERT-family encoders, id for id what Hugging Face's BertTokenizerFast gives.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/bert_text.h"
#include "data/text/piece_trie.h"

namespace trireme::data {

struct WordPieceOptions {
  BertTextRules text;
  std::string unk = "[UNK]", cls = "[CLS]", sep = "[SEP]", pad = "[PAD]", mask = "[MASK]";
  std::string prefix = "##";        // of a piece that continues a word
  size_t max_chars_per_word = 100;  // a longer word is one [UNK]
  size_t max_length = 0;            // tokens, special ones included, when encode is not told; 0 = unlimited
};

/// What an encoder takes: three equally long rows.
struct Encoding {
  std::vector<int64_t> ids;
  std::vector<int64_t> type_ids;        // 0 for the first text with its [CLS] and [SEP], 1 for the second
  std::vector<int64_t> attention_mask;  // all 1; padding is the batcher's
};

/// A token found in raw text before any normalisation: [CLS] and the like.
struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool single_word = false;  // only between non-word characters
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // and after it
};

/// Immutable after construction; encode from any thread.
class WordPiece {
 public:
  /// `vocab[i]` is the token of id i. Throws invalid_argument if a special token is missing from it.
  WordPiece(std::vector<std::string> vocab, WordPieceOptions options, std::vector<AddedToken> added = {});

  /// From the text of a vocab.txt: a token a line, the line number its id.
  static WordPiece from_vocab(std::string_view vocab_text, WordPieceOptions options = {});
  /// From the text of a tokenizer.json with a WordPiece model. Throws unsupported for other models,
  /// normalizers or post-processors, by name.
  static WordPiece from_tokenizer_json(std::string_view json_text);
  /// From a model's directory: tokenizer.json, or else vocab.txt with tokenizer_config.json if there is one.
  static WordPiece from_directory(const std::string& directory);

  /// [CLS] text [SEP], cut from the right to `max_length` tokens (0: the option's).
  Encoding encode(std::string_view text, size_t max_length = 0) const;
  /// [CLS] first [SEP] second [SEP]; what is too long is cut longest first.
  Encoding encode_pair(std::string_view first, std::string_view second, size_t max_length = 0) const;
  /// The same of tokens.
  Encoding join(std::span<const int64_t> first, std::span<const int64_t> second, size_t max_length = 0) const;
  /// The tokens of a text without [CLS] and [SEP]; those that occur in the text itself are recognised.
  std::vector<int64_t> tokenize(std::string_view text) const;

  size_t vocab_size() const { return vocab_.size(); }
  std::optional<int64_t> find(std::string_view token) const;
  const std::string& token(int64_t id) const;  // throws not_found
  int64_t pad_id() const { return pad_; }
  const WordPieceOptions& options() const { return options_; }

 private:
  void append_plain(std::string_view text, BertWords& scratch, std::vector<int64_t>& ids) const;
  void append_word(std::string_view word, std::vector<int64_t>& ids) const;
  const AddedToken* added_at(std::string_view text, size_t pos) const;
  size_t length_limit(size_t max_length, size_t special) const;

  WordPieceOptions options_;
  std::vector<std::string> vocab_;
  PieceTrie trie_;
  std::optional<uint32_t> continuation_;  // the trie's node after "##"; none: no piece continues a word
  BertText text_;
  std::vector<AddedToken> added_;  // longest first
  bool added_first_[256] = {};     // bytes an added token begins with
  int64_t unk_ = 0, cls_ = 0, sep_ = 0, pad_ = 0;
};

}  // namespace trireme::data
