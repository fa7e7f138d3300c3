// Names of pages of keys and values outside of a session's memory.
#include "engine/pages/page_names.h"

namespace trireme::engine {

std::string to_text(const PageId& id) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint64_t half : id) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[half >> shift & 15];
  }
  return text;
}

PageId PageNames::root(const PageId& adapter, std::string_view salt) const {
  base::KeyedHash hash(key_);
  hash.add(model_.data(), sizeof model_);
  hash.add(adapter.data(), sizeof adapter);
  hash.add(salt);
  return hash.finish();
}

std::vector<PageId> PageNames::of(const PageId& root, std::span<const int64_t> tokens,
                                  int64_t page_tokens) const {
  const auto n = static_cast<size_t>(page_tokens);
  std::vector<PageId> ids;
  ids.reserve(tokens.size() / n);
  PageId before = root;
  for (size_t begin = 0; begin + n <= tokens.size(); begin += n) {
    base::KeyedHash hash(key_);
    hash.add(before.data(), sizeof before);
    hash.add(tokens.data() + begin, n * sizeof(int64_t));
    ids.push_back(before = hash.finish());
  }
  return ids;
}

}  // namespace trireme::engine
