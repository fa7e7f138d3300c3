// How a text is cut into words before byte pairs are merged: the patterns of GPT-2, Llama 3 and Qwen 2.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace trireme::data {

enum class WordPattern {
  none,    ///< the whole text is one word
  gpt2,    ///< 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  llama3,  ///< contractions in any case, up to three digits together, line ends apart
  qwen2    ///< the same with single digits
};

/// The pattern with this regular expression, or none if it is none of ours.
WordPattern pattern_of(std::string_view regex);

/// Ends of the words of a UTF-8 text, one after the other; together they are the whole text. White space is
/// Unicode's, \p{L} and \p{N} follow utf8proc's tables.
void append_word_ends(std::string_view text, WordPattern pattern, std::vector<size_t>& ends);

/// True for Unicode white space.
bool is_white_space(char32_t code);
/// True for letters, digits and underscores of any script.
bool is_word_character(char32_t code);

}  // namespace trireme::data
