// What a SentencePiece model holds, whether it came from its own file or from a GGUF's metadata.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/text/tokenizer.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/normalizer.h"

namespace trireme::data {

/// As sentencepiece_model.proto numbers them; GGUF's token types are the same.
enum class SentencePieceKind : int32_t { normal = 1, unknown, control, user_defined, unused, byte };

struct SentencePieceModel {
  struct Piece {
    std::string text;
    float score = 0;
    SentencePieceKind kind = SentencePieceKind::normal;
    bool strips_right = false;  ///< as a special token it swallows white space behind it
  };
  enum class Type : int32_t { unigram = 1, bpe, word, character };

  std::vector<Piece> pieces;  ///< by id
  Type type = Type::unigram;
  bool byte_fallback = false;
  std::string charsmap;
  SentencePieceRules rules;
  bool prefixes_once = false;  ///< the dummy space stands before the text, not also behind special tokens
  int64_t bos = 1, eos = 2;
  bool adds_bos = false, adds_eos = false;
  std::vector<SpecialToken> added;
};

/// Throws unsupported for models of words and characters.
std::unique_ptr<Tokenizer> tokenizer_of(SentencePieceModel model);

}  // namespace trireme::data
