// How long a step takes by its number of tokens, learnt from those that ran.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace trireme::sched {

/// Steps are compiled for sizes, so there is a price for each size of engine::rounded_size(). The first step
/// of a size, which compiles its program, counts for nothing, and a price that was not seen for a while is
/// doubted: the machine may have changed. Not for several threads at once.
class StepPrices {
 public:
  /// A step of so many tokens took `ns`.
  void observe(int64_t tokens, int64_t ns);
  /// What such a step takes at least: its own price, or that of the next smaller size which was seen lately.
  /// 0: none was.
  double at_least_ns(int64_t tokens) const;
  /// What it takes in all likelihood, with the usual spread: its own price, else along the line through the
  /// known sizes next to it, which an old price is not above. Infinite where nothing smaller is known.
  double expected_ns(int64_t tokens) const;

 private:
  struct Price {
    double mean_ns = 0, spread_ns = 0;
    int64_t seen = 0;       ///< how often
    int64_t last_seen = 0;  ///< count of observations then
  };
  bool is_known(size_t size) const { return prices_[size].seen > 1; }
  bool is_fresh(size_t size) const;
  double along_line_ns(size_t size) const;

  static constexpr size_t kSizes = 64;
  std::array<Price, kSizes> prices_{};  ///< of the i-th size
  int64_t observations_ = 0;
};

}  // namespace trireme::sched
