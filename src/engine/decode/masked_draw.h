// One answer whose tokens must be of a set that changes with each: steps give logits, draws happen on the
// host.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/decode/generator.h"

namespace trireme::engine {

/// What an answer may go on with.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  /// A bit a token, in words of 64; valid until the next accept().
  virtual std::span<const uint64_t> mask() = 0;
  /// Called with each token that was drawn.
  virtual void accept(int64_t token) = 0;
};

/// Continues one prompt. Tokens outside the mask count as if their logits were minus infinity; else draws are
/// those of sample_tokens, and so are the events, which `each` gets as they come. What may run at the same
/// time is nothing: the session is the caller's alone. Throws what GenerateLimits::check() throws;
/// unsupported for penalties; exhausted where the mask allows no token, naming how many came before.
FinishReason generate_masked(DecodeSession& session, GenerateRequest request, TokenFilter& filter,
                             const std::function<void(const GenerateEvent&)>& each);

}  // namespace trireme::engine
