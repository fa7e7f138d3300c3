// The words of a tokenizer as GGUF files name them (tokenizer.ggml.pre): regular expressions by a name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::tensor {

// Regular expressions of words as models publish them.
inline constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kCl100kWords =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
    R"(|\s*[\r\n]|\s+(?!\S)|\s+)";
inline constexpr std::string_view kO200kWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Runs of punctuation, and of ASCII's other signs.
inline constexpr std::string_view kPunctuationRuns = R"([\p{P}\$\+<=>\^~\|`]+)";

/// The expressions of a name, applied in sequence: each splits what the one before left.
struct GgufWords {
  std::vector<std::string_view> names;  ///< the first is the one that is written
  std::vector<std::string_view> patterns;
  bool ignores_merges = false;                   ///< a word that is a token becomes that token
  std::vector<std::string_view> published = {};  ///< as tokenizer.json has them; empty: as `patterns`
};

/// Throws unsupported for a name that is not known.
const GgufWords& gguf_words(std::string_view name);

/// The name of the words that a tokenizer.json splits by these expressions; empty where GGUF has none. Of
/// two names for the same expressions the one whose tokenizers use merges as this one does.
std::string_view gguf_words_name(const std::vector<std::string>& published, bool ignores_merges);

}  // namespace trireme::tensor
