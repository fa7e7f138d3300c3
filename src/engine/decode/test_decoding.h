// What tests of decoding share: random tokens, feeding them in pieces, and how far logits lie apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "engine/decode/decode_session.h"

namespace trireme::engine {

inline std::vector<int64_t> random_tokens(int64_t n, int64_t vocabulary, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<int64_t>(engine() % static_cast<uint32_t>(vocabulary)));
  return tokens;
}

/// Feeds tokens in pieces of the given sizes (the last size repeats); returns the logits after each.
inline std::vector<std::vector<float>> feed(DecodeSession& session, SequenceId id,
                                            std::span<const int64_t> tokens,
                                            const std::vector<size_t>& sizes) {
  std::vector<std::vector<float>> logits;
  for (size_t at = 0, i = 0; at < tokens.size(); ++i) {
    const size_t n = std::min(sizes[std::min(i, sizes.size() - 1)], tokens.size() - at);
    const DecodePiece piece{id, tokens.subspan(at, n)};
    const auto row = session.step({&piece, 1});
    logits.emplace_back(row.begin(), row.end());
    at += n;
  }
  return logits;
}

/// The largest difference; infinite where their numbers differ.
inline double difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}

}  // namespace trireme::engine
