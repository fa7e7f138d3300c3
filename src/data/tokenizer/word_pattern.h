// The word patterns of GPT-2, Llama 3 and Qwen 2 as scanners, several times as fast as their expressions.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "tensor/gguf/gguf_words.h"

namespace trireme::data {

using tensor::kCl100kWords;
using tensor::kGpt2Words;
using tensor::kLlama3Words;
using tensor::kO200kWords;
using tensor::kQwen2Words;

/// Those with a scanner.
enum class WordPattern {
  gpt2,    ///< 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  llama3,  ///< contractions in any case, up to three digits together, line ends apart
  qwen2    ///< the same with single digits
};

/// The pattern with this regular expression, if it is one of these.
std::optional<WordPattern> pattern_of(std::string_view regex);

/// Ends of the words of a UTF-8 text, each `offset` further; together they are the whole text.
void append_word_ends(std::string_view text, WordPattern pattern, size_t offset, std::vector<size_t>& ends);

}  // namespace trireme::data
