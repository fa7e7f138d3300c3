// What shapes the draws of one answer beside its sampling: which tokens may come, biases, lists of the
// likeliest.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trireme::engine {

/// Which tokens may come next in one answer. Asked by the thread that runs the steps, and between them: what
/// it does must be quick. Errors of the first two end the answer and no other.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  /// A bit a token, in words of 64: bit id % 64 of word id / 64; tokens behind the last word may not come.
  /// Valid until the next accept().
  virtual std::span<const uint64_t> mask() = 0;
  /// Takes a token of the mask, which was drawn.
  virtual void accept(int64_t token) = 0;
  /// Goes on from here by itself: what it accepts, this one does not know.
  virtual std::unique_ptr<TokenFilter> fork() const = 0;
};

/// Added to the logit of a token, before penalties.
struct TokenBias {
  int32_t token = 0;
  float bias = 0;
};

/// A token that might have come, and the natural logarithm of its probability.
struct TokenChance {
  int64_t token = 0;
  double log_probability = 0;
};

/// A token of a prompt, and what might have come in its place.
struct ScoredToken {
  int64_t token = 0;
  double log_probability = 0;
  std::vector<TokenChance> likeliest = {};
};

}  // namespace trireme::engine
