// Byte pair encoding as language models have it: GPT-2's over bytes, and SentencePiece's over characters.
#pragma once

#include <array>
#include <functional>
#include <unordered_map>

#include "data/text/bpe_split.h"
#include "data/text/tokenizer.h"

namespace trireme::data {

/// Ids are below: a file cannot ask for any amount of memory.
inline constexpr int64_t kMostTokens = int64_t{1} << 21;

/// A token that is found in raw text before anything else happens to it.
struct SpecialToken {
  std::string content;
  int64_t id = 0;
  bool single_word = false;  ///< only between characters that are no word's
  bool lstrip = false;       ///< swallows white space before it
  bool rstrip = false;       ///< and after it
  bool is_special = true;    ///< left out of decoded text
};

struct BpeOptions {
  /// Tokens are bytes in GPT-2's alphabet; else they are text.
  bool byte_level = true;
  WordPattern pattern = WordPattern::gpt2;
  bool add_prefix_space = false;  ///< bytes: a text that begins without a space gets one
  bool normalize_nfc = false;
  /// Text: a space is written so ("▁"), and one stands before the text (before each between special tokens;
  /// before the first alone).
  std::string space;
  enum class Prefix : uint8_t { never, first, always };
  Prefix prefix = Prefix::never;
  bool skips_marked = false;            ///< no prefix where the text begins with a space as it is
  bool splits_at_space = false;         ///< a word begins at each space, else the text is one word
  bool byte_fallback = false;           ///< a character without a token becomes its bytes, <0x0A>
  std::string unknown;                  ///< the token of what has none; empty: it is left out
  bool fuses_unknown = false;           ///< several in a row are one
  bool ignores_merges = false;          ///< a word that is a token is taken at once
  int strips_start = 0;                 ///< spaces taken from the beginning of decoded text
  bool drops_first_spaces = false;      ///< of the first decoded token, all of them
  std::vector<int64_t> before, behind;  ///< special tokens around every text
};

class Bpe : public Tokenizer {
 public:
  /// tokens[i] is the spelling of id i ("" for none); merges in the order of their rank. Throws
  /// invalid_argument for a merge of tokens that are not there.
  Bpe(std::vector<std::string> tokens, const std::vector<std::pair<std::string, std::string>>& merges,
      BpeOptions options, std::vector<SpecialToken> special);

  /// From the text of a tokenizer.json. Throws unsupported naming the part that is not done here.
  static std::unique_ptr<Bpe> from_tokenizer_json(std::string_view json_text);

  std::vector<int64_t> encode(std::string_view text, bool special = true) const override;
  std::unique_ptr<TextStream> stream() const override;
  std::string decode(const std::vector<int64_t>& ids) const override;
  std::optional<int64_t> find(std::string_view token) const override;
  int64_t vocabulary_size() const override { return static_cast<int64_t>(tokens_.size()); }

 private:
  class Stream;
  struct Merge {
    int32_t rank, id;
  };
  struct TextHash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  void encode_section(std::string_view text, bool is_first, std::vector<int64_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int64_t>& ids) const;
  void append_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void merge(std::vector<int32_t>& symbols) const;
  std::string marked(std::string_view text, bool is_first) const;
  const SpecialToken* special_at(std::string_view text, size_t pos) const;
  int32_t id_of(std::string_view token) const;
  std::string bytes_of(int64_t id) const;

  BpeOptions options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>> ids_;
  std::unordered_map<uint64_t, Merge> merges_;  // by the pair of ids
  std::vector<SpecialToken> special_;           // longest first
  std::vector<int8_t> special_kind_;            // by id: 0 none, 1 special, 2 added and shown
  std::array<int32_t, 256> byte_ids_{};         // the token of each byte, -1 without one
  bool begins_special_[256] = {};
};

}  // namespace trireme::data
