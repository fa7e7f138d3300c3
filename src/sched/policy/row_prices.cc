// The price of a row in batches of each size, and how many of the waiting rows to run at once.
#include "sched/policy/row_prices.h"

#include <algorithm>
#include <bit>

namespace trireme::sched {
namespace {

/// Prices that differ by less count as equal.
constexpr double kAlikePrices = 1.03;
/// A size is tried if the price of its neighbour is at most this multiple of the lowest.
constexpr double kHope = 1.25;
/// A batch also costs the hand-over to the instance and back, which its time does not include.
constexpr int64_t kHandOverNs = 10'000;
constexpr size_t kSamples = 15;
/// Batches in quick succession are sampled at this interval only.
constexpr int64_t kSampleNs = 500'000;
/// A size not seen for this long is tried again; an expensive one later, so that trials cost 1/400 of the
/// time. Without trials, a size seen only while the machine was slow would seem expensive for ever.
constexpr int64_t kOutdatedNs = 5'000'000'000, kLongOutdatedNs = 60'000'000'000;
constexpr double kLookShare = 1.0 / 400;
/// Clients choose shapes, so the number of remembered ones is bounded.
constexpr size_t kMostKeptGroups = 128;

}  // namespace

RowPrices::RowPrices(std::vector<int64_t> row_buckets, int64_t max_rows)
    : buckets_(std::move(row_buckets)), max_rows_(max_rows) {}

void RowPrices::Cost::add(int64_t taken_ns, int64_t now_ns) {
  // After a pause in which the time changed much, it is learned anew: unknown until two more runs.
  size_t kept = kSamples - 1;
  if (is_known() && seen_ns < now_ns - kOutdatedNs) {
    const double change = static_cast<double>(taken_ns) / median_ns;
    if (change > kHope || change < 1 / kHope) kept = 0;
  }
  if (last_ns.size() > kept) last_ns.erase(last_ns.begin(), last_ns.end() - static_cast<ptrdiff_t>(kept));
  last_ns.push_back(taken_ns);
  std::vector<int64_t> sorted = last_ns;
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  median_ns = static_cast<double>(*middle);
  seen_ns = now_ns;
}

/// Without buckets, a size counts as the next power of two.
int64_t RowPrices::size_of(int64_t rows) const {
  if (!buckets_.empty()) return bucket_of(buckets_, rows);
  return std::max(std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))), max_rows_),
                  rows);
}

int64_t RowPrices::next_above(int64_t size) const { return size_of(size + 1); }

int64_t RowPrices::next_below(int64_t size) const {
  if (buckets_.empty()) return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size - 1)));
  const auto at = std::lower_bound(buckets_.begin(), buckets_.end(), size);
  return at == buckets_.begin() ? 0 : *std::prev(at);
}

void RowPrices::observe(uint64_t group, int64_t padded, int64_t ns, int64_t now_ns) {
  if (padded <= 0) return;
  const int64_t size = size_of(padded);
  Cost& cost = groups_[group][size];
  if (cost.is_known() && now_ns - cost.seen_ns < kSampleNs) return;
  cost.add((ns + kHandOverNs) * size / padded, now_ns);
  if (groups_.size() > kMostKeptGroups) forget_oldest();
}

void RowPrices::forget_oldest() {
  const auto seen_ns = [](const auto& group) {
    int64_t last = 0;
    for (const auto& [size, cost] : group.second) last = std::max(last, cost.seen_ns);
    return last;
  };
  groups_.erase(std::min_element(groups_.begin(), groups_.end(),
                                 [&](const auto& a, const auto& b) { return seen_ns(a) < seen_ns(b); }));
}

double RowPrices::full_price(const Sizes& sizes, int64_t size) {
  const auto at = sizes.find(size);
  if (at == sizes.end() || !at->second.is_known()) return 0;
  return at->second.median_ns / static_cast<double>(size);
}

/// A size worth trying, or 0: all waiting rows if the next smaller size is among the cheapest, or a smaller
/// size next to one that is.
int64_t RowPrices::untried(const Sizes& sizes, int64_t rows, double lowest) const {
  const int64_t whole = size_of(rows);
  if (full_price(sizes, whole) == 0) {
    const double below = full_price(sizes, next_below(whole));
    return below == 0 || below <= kHope * lowest ? rows : 0;
  }
  for (int64_t above = whole, size = next_below(whole); size > 0; above = size, size = next_below(size)) {
    if (full_price(sizes, size) != 0) continue;
    return full_price(sizes, above) <= kHope * lowest ? size : 0;
  }
  return 0;
}

/// The fewest rows whose price is near the lowest available for at most `rows`. In a padded batch, only the
/// real rows share the price.
int64_t RowPrices::cheapest(const Sizes& sizes, int64_t rows) const {
  const int64_t whole = size_of(rows);
  const double share = buckets_.empty() ? 1.0 : static_cast<double>(whole) / static_cast<double>(rows);
  const double whole_price = full_price(sizes, whole) * share;
  double lowest = whole_price;
  for (int64_t size = next_below(whole); size > 0; size = next_below(size)) {
    const double price = full_price(sizes, size);
    if (price > 0 && (lowest == 0 || price < lowest)) lowest = price;
  }
  int64_t chosen = rows;
  for (int64_t size = next_below(whole); size > 0; size = next_below(size)) {
    const double price = full_price(sizes, size);
    if (price > 0 && price <= kAlikePrices * lowest) chosen = size;
  }
  return chosen;
}

/// A size that was not seen for long, or 0, because the machine may have changed. Of larger sizes only the
/// next one, because trying it makes requests wait.
int64_t RowPrices::outdated(const Sizes& sizes, const Choice& choice, int64_t rows, int64_t now_ns) const {
  const int64_t most = std::min(next_above(size_of(choice.rows)), rows);
  for (const auto& [size, cost] : sizes) {
    if (size > most) break;
    const double excess_ns = (full_price(sizes, size) - choice.lowest) * static_cast<double>(size);
    const double pause_ns = std::clamp(excess_ns / kLookShare, double(kOutdatedNs), double(kLongOutdatedNs));
    if (static_cast<double>(now_ns - cost.seen_ns) > pause_ns) return size;
  }
  return 0;
}

BatchWorth RowPrices::worth(uint64_t group, int64_t rows, int64_t now_ns) const {
  const auto found = groups_.find(group);
  if (found == groups_.end() || rows <= 0) return {.rows = rows};
  const Sizes& sizes = found->second;
  double lowest = 0;
  for (const auto& [size, cost] : sizes) {
    const double price = full_price(sizes, size);
    if (price > 0 && (lowest == 0 || price < lowest)) lowest = price;
  }
  if (const int64_t size = untried(sizes, rows, lowest); size > 0) return {.rows = size};
  BatchWorth worth{.rows = cheapest(sizes, rows)};
  if (const int64_t size = outdated(sizes, {worth.rows, lowest}, rows, now_ns); size > 0)
    return {.rows = size};
  // Waiting for more rows pays only if larger batches are known to be cheaper, or are unknown.
  const int64_t size = size_of(worth.rows);
  const double own = full_price(sizes, size) * static_cast<double>(size) / static_cast<double>(worth.rows);
  const bool knows_more = size >= max_rows_ || full_price(sizes, next_above(size)) > 0;
  worth.gains_by_waiting = !knows_more || own > kAlikePrices * lowest;
  return worth;
}

WorthOf RowPrices::worth_at(int64_t now_ns, bool ends_waits) const {
  return [this, now_ns, ends_waits](uint64_t group, int64_t rows) {
    BatchWorth found = worth(group, rows, now_ns);
    found.gains_by_waiting = found.gains_by_waiting || !ends_waits;
    return found;
  };
}

}  // namespace trireme::sched
