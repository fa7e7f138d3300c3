// Fuzzes WordPiece: any bytes as text give known ids; any bytes as a tokenizer.json load or are refused.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/text/wordpiece.h"
#include "tests/fuzz_bounds.h"

namespace {

using trireme::data::WordPiece;

const WordPiece& tokenizer() {
  static const WordPiece built = WordPiece::from_vocab(
      "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##a\nab\n##b\nthe\n!\n\xE4\xB8\xAD\n\xCE\xB1\n##\xCC\x87\n");
  return built;
}

void load(std::string_view json) {
  try {
    WordPiece::from_tokenizer_json(json).encode("the a!", 16);
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size,
                                           {.fixed_peak_bytes = size_t{32} << 20, .peak_per_byte = 4096});
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto encoding = tokenizer().encode(text, 64);
  if (encoding.ids.size() > 64 || encoding.ids.size() != encoding.type_ids.size()) std::abort();
  for (const int64_t id : encoding.ids) {
    if (id < 0 || id >= static_cast<int64_t>(tokenizer().vocab_size())) std::abort();
  }
  tokenizer().encode_pair(text.substr(0, size / 2), text.substr(size / 2), 9);
  if (size > 0 && text[0] == '{') load(text);
  return 0;
}
