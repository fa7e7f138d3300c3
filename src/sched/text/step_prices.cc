// How long a step takes by its number of tokens.
#include "sched/text/step_prices.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace trireme::sched {
namespace {

/// Observations after which a price that was not among them is doubted.
constexpr int64_t kRemembered = 512;

/// 1, 2, 3, 4, 6, 8, 12, ...: engine::rounded_size() by number.
size_t size_number(int64_t tokens) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(tokens, 1));
  if (n <= 2) return n - 1;
  const auto power = static_cast<size_t>(std::bit_width(n - 1));  // 2^power is n or the next above
  return 2 * power - (n <= (uint64_t{3} << (power - 2)) ? 2 : 1);
}

double tokens_of(size_t number) {
  if (number < 2) return static_cast<double>(number + 1);
  return std::ldexp(number % 2 == 0 ? 3.0 : 4.0, static_cast<int>(number / 2) - 1);
}

}  // namespace

bool StepPrices::is_fresh(size_t size) const {
  return is_known(size) && observations_ - prices_[size].last_seen < kRemembered;
}

void StepPrices::observe(int64_t tokens, int64_t ns) {
  const size_t size = std::min(size_number(tokens), kSizes - 1);
  Price& price = prices_[size];
  if (price.seen > 0 && observations_ - price.last_seen >= kRemembered) price.seen = 1;
  price.last_seen = ++observations_;
  const auto value = static_cast<double>(ns);
  if (++price.seen == 2) {
    price.mean_ns = value;
    price.spread_ns = 0;
  }
  if (price.seen <= 2) return;
  // As in BatchCost: follows a change within a few steps, and one that stalled counts as twice the usual.
  const double seen = std::min(value, 2 * price.mean_ns);
  price.spread_ns += (std::abs(seen - price.mean_ns) - price.spread_ns) / 8;
  price.mean_ns += (seen - price.mean_ns) / 4;
}

double StepPrices::at_least_ns(int64_t tokens) const {
  for (size_t size = std::min(size_number(tokens), kSizes - 1) + 1; size > 0; --size) {
    if (is_fresh(size - 1)) return prices_[size - 1].mean_ns;
  }
  return 0;
}

double StepPrices::along_line_ns(size_t size) const {
  const auto price = [&](size_t i) { return prices_[i].mean_ns + prices_[i].spread_ns; };
  size_t below = size, above = size + 1;
  while (below > 0 && !is_known(below - 1)) --below;
  if (below == 0) return std::numeric_limits<double>::infinity();
  --below;
  while (above < kSizes && !is_known(above)) ++above;
  double slope = price(below) / tokens_of(below);  // in proportion, where one price is all that is known
  if (above < kSizes) {
    slope = std::max(0.0, price(above) - price(below)) / (tokens_of(above) - tokens_of(below));
  } else {
    size_t before = below;
    while (before > 0 && !is_known(before - 1)) --before;
    if (before > 0)
      slope = std::max(0.0, price(below) - price(before - 1)) / (tokens_of(below) - tokens_of(before - 1));
  }
  return price(below) + slope * (tokens_of(size) - tokens_of(below));
}

double StepPrices::expected_ns(int64_t tokens) const {
  const size_t size = std::min(size_number(tokens), kSizes - 1);
  const double own = prices_[size].mean_ns + prices_[size].spread_ns;
  if (is_fresh(size)) return own;
  return is_known(size) ? std::min(own, along_line_ns(size)) : along_line_ns(size);
}

}  // namespace trireme::sched
