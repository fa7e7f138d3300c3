// Tokenizers from .tiktoken files: a token per line, as base64 bytes and rank; the file's name determines
// pattern and special tokens.
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text/base64.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/characters.h"
#include "data/tokenizer/piece_tokenizer.h"

namespace trireme::data {
namespace {

struct Named {
  std::string_view text;
  int64_t id;
};

/// What a file's name implies, because the file itself holds ranks only.
struct Encoding {
  std::string_view name, pattern;
  std::vector<Named> special;
};

const std::vector<Encoding>& encodings() {
  static const std::vector<Encoding> kKnown = {
      {"gpt2", kGpt2Words, {{"<|endoftext|>", 50256}}},
      {"r50k_base", kGpt2Words, {{"<|endoftext|>", 50256}}},
      {"p50k_base", kGpt2Words, {{"<|endoftext|>", 50256}}},
      {"multilingual", kGpt2Words, {{"<|endoftext|>", 50257}, {"<|startoftranscript|>", 50258}}},
      {"cl100k_base",
       kCl100kWords,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k_base", kO200kWords, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
  };
  return kKnown;
}

/// The bytes and the rank in a line.
std::pair<std::string, int64_t> token_of(std::string_view line, size_t number) {
  const size_t space = line.find(' ');
  base::require(space != std::string_view::npos && space > 0, "line ", number,
                " is not a token and its rank");
  const std::string_view digits = line.substr(space + 1);
  int64_t rank = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  base::require(error == std::errc() && end == digits.data() + digits.size() && rank >= 0, "line ", number,
                ": the rank '", digits, "'");
  return {base::decode_base64(line.substr(0, space)), rank};
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_tiktoken(std::string_view text, std::string_view name) {
  const auto& known = encodings();
  const auto encoding =
      std::find_if(known.begin(), known.end(), [&](const auto& e) { return e.name == name; });
  if (encoding == known.end()) {
    std::string names;
    for (const Encoding& e : known) names += base::concat(names.empty() ? "" : ", ", e.name);
    base::fail_unsupported("'", name, ".tiktoken': its words are not known; known: ", names);
  }
  std::vector<std::string> bytes;
  for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const auto [token, rank] = token_of(line, number);
    place_token(bytes, rank, token);
  }
  TokenizerParts parts;
  std::vector<int32_t> ranks;
  for (const std::string& token : bytes) {
    ranks.push_back(static_cast<int32_t>(ranks.size()));
    parts.tokens.push_back(to_alphabet(token));
  }
  for (const Named& special : encoding->special)
    parts.special.push_back({.content = std::string(special.text), .id = special.id});
  if (const auto pattern = pattern_of(encoding->pattern))
    parts.pre_tokenizer.push_back(split_words(*pattern));
  else
    parts.pre_tokenizer.push_back(
        split(find_matches(Regex(encoding->pattern), false), SplitBehavior::isolated));
  parts.decoder.is_byte_level = true;
  Vocabulary vocabulary(bytes);
  const std::vector<BpeMerge> merges = merges_by_rank(vocabulary, ranks);
  parts.model = std::make_unique<BpeModel>(std::move(vocabulary), merges, BpeRules{.ignores_merges = true});
  return std::make_unique<PieceTokenizer>(std::move(parts));
}

}  // namespace trireme::data
