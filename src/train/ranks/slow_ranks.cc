// Compares the mean work of each rank with the median of its peers.
#include "train/ranks/slow_ranks.h"

#include <algorithm>
#include <map>

namespace trireme::train {

std::vector<SlowRank> slow_ranks(const std::vector<double>& busy_ms, const std::vector<int>& group_of) {
  std::map<int, std::vector<double>> groups;
  for (size_t r = 0; r < busy_ms.size(); ++r) groups[group_of[r]].push_back(busy_ms[r]);
  std::vector<SlowRank> slow;
  for (size_t r = 0; r < busy_ms.size(); ++r) {
    std::vector<double>& peers = groups[group_of[r]];
    // The lower median: of two ranks, the slower one is compared with the faster.
    const auto middle = peers.begin() + static_cast<ptrdiff_t>((peers.size() - 1) / 2);
    std::nth_element(peers.begin(), middle, peers.end());
    if (busy_ms[r] > SlowRanks::kTolerated * *middle) {
      slow.push_back({static_cast<int>(r), busy_ms[r], *middle});
    }
  }
  return slow;
}

std::vector<SlowRank> SlowRanks::observe(double busy_ms) {
  if (ranks_.size() == 1) return {};
  sum_ms_ += busy_ms;
  if (++steps_ < kWindow) return {};
  const double mean = sum_ms_ / static_cast<double>(steps_);
  sum_ms_ = 0;
  steps_ = 0;
  const tensor::MeshShape& shape = ranks_.mesh()->shape();
  std::vector<int> stage_of;
  for (int r = 0; r < ranks_.size(); ++r) {
    stage_of.push_back(shape.has("pp") ? shape.coordinates(r)[shape.index_of("pp")] : 0);
  }
  return slow_ranks(ranks_.gather(std::span(&mean, 1)), stage_of);
}

}  // namespace trireme::train
