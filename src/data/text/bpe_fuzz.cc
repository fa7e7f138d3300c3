// Fuzzes byte pair tokenizers: any bytes as text come back as they were; any bytes as a tokenizer.json load
// or are refused.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "data/text/bpe.h"
#include "tests/fuzz_bounds.h"

namespace {

using trireme::data::Bpe;
using trireme::data::BpeOptions;
using trireme::data::WordPattern;

/// All 256 bytes in GPT-2's alphabet and a few merges.
Bpe byte_level(WordPattern pattern) {
  std::vector<std::string> tokens;
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    trireme::base::append_utf8(tokens.emplace_back(), is_shown ? byte : next++);
  }
  for (const char* merged : {"th", "the", "in", "12"}) tokens.emplace_back(merged);
  return Bpe(tokens, {{"t", "h"}, {"th", "e"}, {"i", "n"}, {"1", "2"}}, BpeOptions{.pattern = pattern},
             {{.content = "<|end|>", .id = 260, .lstrip = true, .is_special = false}});
}

void load(std::string_view json) {
  try {
    const auto bpe = Bpe::from_tokenizer_json(json);
    bpe->decode(bpe->encode(" the a!\n\xE4\xB8\xAD <s>"));
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size,
                                           {.fixed_peak_bytes = size_t{32} << 20, .peak_per_byte = 4096});
  static const Bpe kTokenizers[] = {byte_level(WordPattern::gpt2), byte_level(WordPattern::llama3),
                                    byte_level(WordPattern::qwen2), byte_level(WordPattern::none)};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Bpe& bpe : kTokenizers) {
    const auto ids = bpe.encode(text);
    for (const int64_t id : ids) {
      if (id < 0 || id >= bpe.vocabulary_size()) std::abort();
    }
    const bool has_special = text.find("<|end|>") != std::string_view::npos;  // takes spaces along
    if (!has_special && trireme::base::is_utf8(text) && bpe.decode(ids) != text) std::abort();
  }
  if (size > 0 && text[0] == '{') load(text);
  return 0;
}
