// Counts of one language model's pages that other sessions computed, and of prompts computed after all.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "serve/seeing/metrics.h"

namespace trireme::serve {

/// Why a prompt, or the rest of one, was computed by who decodes it.
enum class Fallback : uint8_t {
  busy,         ///< as much is under way as may be
  unreachable,  ///< nobody answers at the address, or the connection broke
  refused,      ///< the other server answered with an error
  mismatch,     ///< what came were not the pages that were asked for
  partial,      ///< only the first of them came
  failed,       ///< the other instance of this process could not compute them
  late          ///< they were not there in time
};
constexpr size_t kFallbacks = 7;

/// Any thread. Series of a model that is loaded again go on from where they were.
class HandOverMetrics {
 public:
  HandOverMetrics(MetricRegistry& registry, const std::string& model);

  /// Pages have come, so long after they were asked for.
  void count_pages(int64_t pages, int64_t page_bytes, int64_t ns) const;
  void count(Fallback why) const { fallbacks_[static_cast<size_t>(why)]->add(); }
  /// Pages were given to another server.
  void count_given(int64_t page_bytes) const;

 private:
  // The registry's, which outlives the model:
  MetricCounter *pages_, *bytes_, *given_pages_, *given_bytes_;
  MetricHistogram* seconds_;
  std::array<MetricCounter*, kFallbacks> fallbacks_;
};

}  // namespace trireme::serve
