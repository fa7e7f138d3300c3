// Fuzzes tokenizers: any bytes as text decode to themselves; any bytes as a tokenizer's file load or are
// refused.
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/text/json.h"
#include "base/utf8.h"
#include "data/tokenizer/piece_tokenizer.h"
#include "data/tokenizer/characters.h"
#include "tests/fuzz_bounds.h"

namespace {

using trireme::base::Json;
using trireme::data::Tokenizer;

/// All 256 bytes in GPT-2's alphabet and a few merges, with words by one regular expression.
std::unique_ptr<Tokenizer> byte_level(const char* regex) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab.set(trireme::data::to_alphabet(std::string(1, static_cast<char>(byte))), byte);
  int64_t next = 256;
  for (const char* merged : {"th", "the", "in", "12"}) vocab.set(merged, next++);
  const Json split = Json::object(
      {{"type", "Split"}, {"pattern", Json::object({{"Regex", regex}})}, {"behavior", "Isolated"}});
  const Json bytes = Json::object({{"type", "ByteLevel"}, {"use_regex", false}});
  const Json json =
      Json::object({{"model", Json::object({{"type", "BPE"},
                                            {"vocab", vocab},
                                            {"merges", Json::array({"t h", "th e", "i n", "1 2"})}})},
                    {"pre_tokenizer",
                     Json::object({{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}})},
                    {"decoder", Json::object({{"type", "ByteLevel"}})},
                    {"added_tokens",
                     Json::array({Json::object({{"id", 260}, {"content", "<|end|>"}, {"lstrip", true}})})}});
  return trireme::data::tokenizer_from_json(json.dump());
}

template <class Load>
void load(Load from) {
  try {
    const auto tokenizer = from();
    tokenizer->decode(tokenizer->encode(" the a!\n\xE4\xB8\xAD <s>"));
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<Tokenizer> kTokenizers[] = {
      byte_level(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
      byte_level(R"([^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+|\p{N}{1,3}|\s+(?!\S)|\s+)"), byte_level(".")};
  // What is built once is not the input's work.
  const trireme::fuzz::BoundedWork bounded(size,
                                           {.fixed_peak_bytes = size_t{32} << 20, .peak_per_byte = 4096});
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& tokenizer : kTokenizers) {
    const auto ids = tokenizer->encode(text);
    for (const int64_t id : ids) {
      if (id < 0 || id >= tokenizer->vocabulary_size()) std::abort();
    }
    const bool has_special = text.find("<|end|>") != std::string_view::npos;  // strips spaces around it
    if (!has_special && trireme::base::is_utf8(text) && tokenizer->decode(ids) != text) std::abort();
  }
  if (size > 0 && text[0] == '{') load([&] { return trireme::data::tokenizer_from_json(text); });
  if (size > 0 && text[0] == '\n')
    load([&] { return trireme::data::tokenizer_from_sentence_piece(text, ""); });
  load([&] { return trireme::data::tokenizer_from_tiktoken(text, "cl100k_base"); });
  return 0;
}
