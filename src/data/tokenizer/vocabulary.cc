// Finds tokens by text: open addressing over their hashes.
#include "data/tokenizer/vocabulary.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace trireme::data {

uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15u;
  uint64_t state = bytes.size() * kMix;
  const char* at = bytes.data();
  size_t left = bytes.size();
  while (left > 0) {
    uint64_t part = 0;
    const size_t n = left < 8 ? left : 8;
    std::memcpy(&part, at, n);
    state = (state ^ part) * kMix;
    state ^= state >> 32;
    at += n;
    left -= n;
  }
  return state;
}

Vocabulary::Vocabulary(const std::vector<std::string>& tokens) : begins_{0} {
  base::require(static_cast<int64_t>(tokens.size()) <= kMostTokens, "vocabulary of ", tokens.size(),
                " tokens; at most ", kMostTokens);
  slots_.resize(std::bit_ceil(2 * tokens.size() + 2));
  begins_.reserve(tokens.size() + 1);
  for (size_t id = 0; id < tokens.size(); ++id) {
    bytes_ += tokens[id];
    begins_.push_back(bytes_.size());
    if (tokens[id].empty() || find(tokens[id]) != kNone) continue;
    const uint64_t hash = hash_bytes(tokens[id]);
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at].id != kNone) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {static_cast<uint32_t>(hash >> 32), static_cast<int32_t>(id)};
  }
}

int32_t Vocabulary::find(std::string_view text) const {
  const uint64_t hash = hash_bytes(text);
  for (size_t at = hash & (slots_.size() - 1); slots_[at].id != kNone; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].hash == static_cast<uint32_t>(hash >> 32) &&
        (*this)[static_cast<size_t>(slots_[at].id)] == text)
      return slots_[at].id;
  }
  return kNone;
}

void place_token(std::vector<std::string>& tokens, int64_t id, std::string_view text) {
  base::require(id >= 0 && id < kMostTokens, "token '", text, "' has the id ", id);
  if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
  tokens[static_cast<size_t>(id)] = text;
}

}  // namespace trireme::data
