// A tokenizer as a pipeline: added tokens, normalizer, pieces, model, template; and the way back to text.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/text/tokenizer.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/piece_model.h"
#include "data/tokenizer/pieces.h"

namespace trireme::tensor {
class GgufMetadata;
}

namespace trireme::data {

/// How tokens become text.
struct DecodeRules {
  bool is_byte_level = false;                                 ///< tokens are spelled in GPT-2's alphabet
  bool has_bytes = false;                                     ///< <0x0A> is a byte
  std::vector<std::pair<std::string, std::string>> replaced;  ///< in each token, in this order
  int strips_start = 0;                                       ///< spaces taken from the beginning of the text
  int strips_end = 0;                                         ///< and from its end
  std::string first_mark;                                     ///< in the first token it is nothing
  std::string word_prefix;  ///< WordPiece: of a token that continues a word; others begin with a space
  bool is_word_piece = false;
  bool cleans_up = false;       ///< no space before punctuation and contractions
  std::string word_suffix;      ///< of a token that ends a word: becomes a space, but not at the end
  bool joins_by_space = false;  ///< no rules: a space between tokens
};

/// What a tokenizer's file says.
struct TokenizerParts {
  std::vector<std::string> tokens;    ///< by id, as they are spelled; "" for none
  std::vector<SpecialToken> special;  ///< their ids may lie behind the model's
  std::vector<NormalizerStep> normalizer;
  std::vector<NormalizerStep> later_normalizer;  ///< behind a special token; empty: as `normalizer`
  std::vector<PieceStep> pre_tokenizer;
  bool is_byte_level = false;  ///< the model sees bytes in GPT-2's alphabet
  std::unique_ptr<PieceModel> model;
  std::vector<int64_t> before, behind;  ///< special tokens around every text
  DecodeRules decoder;
};

class PieceTokenizer : public Tokenizer {
 public:
  /// Throws invalid_argument for special tokens with ids out of range.
  explicit PieceTokenizer(TokenizerParts parts);

  std::vector<int64_t> encode(std::string_view text, bool special = true) const override;
  std::unique_ptr<TextStream> stream() const override;
  std::string decode(const std::vector<int64_t>& ids) const override;
  std::optional<int64_t> find(std::string_view token) const override;
  int64_t vocabulary_size() const override { return static_cast<int64_t>(parts_.tokens.size()); }
  std::string token_bytes(int64_t id) const override;
  bool is_special(int64_t id) const override;

 private:
  class Stream;
  void encode_section(std::string_view text, bool is_first, std::vector<int64_t>& ids) const;
  void encode_normalized(std::string_view text, bool is_first, std::vector<int64_t>& ids) const;
  std::string shown(int64_t id, bool is_first) const;
  bool is_byte(int64_t id) const;

  TokenizerParts parts_;
  std::vector<int8_t> special_kind_;  // by id: 0 none, 1 special, 2 added and shown
  std::unordered_map<std::string, int64_t> special_ids_;
  AddedTokens raw_, normalized_;
  Vocabulary spelled_;
};

/// From the text of a tokenizer.json. Throws unsupported naming the part that is not done here.
std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view json_text);
/// vocab.json and merges.txt with tokenizer_config.json beside them.
std::unique_ptr<Tokenizer> tokenizer_from_merges(const std::string& directory);
/// From the bytes of a SentencePiece model; `config` is tokenizer_config.json's text, or empty.
std::unique_ptr<Tokenizer> tokenizer_from_sentence_piece(std::string_view bytes, std::string_view config);
/// From the text of a .tiktoken file; the name of the file says its pattern and special tokens.
std::unique_ptr<Tokenizer> tokenizer_from_tiktoken(std::string_view text, std::string_view name);

/// From the metadata tokenizer.ggml.* of a GGUF file: SentencePiece, byte pairs by the words of
/// tokenizer.ggml.pre, WordPiece.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const tensor::GgufMetadata& metadata);

}  // namespace trireme::data
