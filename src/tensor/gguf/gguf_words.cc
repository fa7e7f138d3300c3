// The table of tokenizer.ggml.pre.
#include "tensor/gguf/gguf_words.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::tensor {
namespace {

constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSentences = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";

const std::vector<GgufWords>& known_words() {
  static const std::vector<GgufWords> kKnown = {
      {{"gpt-2", "mpt", "olmo", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v2-code"},
       {kGpt2Words}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3"}, {kLlama3Words}, true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, {kLlama3Words}},
      {{"qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"}, {kQwen2Words}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       {R"(\p{N})", kGpt2Words}},
      // Falcon's tokenizer.json also splits at runs of digits, which GGUF leaves out: no token of its
      // vocabulary has a space before digits.
      {{"falcon"},
       {kPunctuationRuns, kGpt2Words, kThreeDigits},
       false,
       {kPunctuationRuns, kGpt2Words, R"(\p{N}+)", kThreeDigits}},
      {{"default", ""}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Words, R"(\p{N}+)", kThreeDigits}},
      {{"gpt-4o", "llama4"}, {kO200kWords}},
      {{"tekken"}, {kTekken}, true},
      {{"deepseek-v3"}, {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseek3}},
      {{"bloom", "poro-chat", "gpt3-finnish"}, {kSentences}},
      {{"viking"}, {kSentences, R"(\p{N})"}},
  };
  return kKnown;
}

}  // namespace

const GgufWords& gguf_words(std::string_view name) {
  for (const GgufWords& words : known_words()) {
    if (std::find(words.names.begin(), words.names.end(), name) != words.names.end()) return words;
  }
  base::fail_unsupported("GGUF: words by tokenizer.ggml.pre = '", name, "'");
}

std::string_view gguf_words_name(const std::vector<std::string>& published, bool ignores_merges) {
  std::string_view name;
  for (const GgufWords& words : known_words()) {
    const auto& own = words.published.empty() ? words.patterns : words.published;
    if (!std::equal(own.begin(), own.end(), published.begin(), published.end())) continue;
    if (words.ignores_merges == ignores_merges) return words.names[0];
    if (name.empty()) name = words.names[0];
  }
  return name;
}

}  // namespace trireme::tensor
