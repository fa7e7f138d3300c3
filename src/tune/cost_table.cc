// What batches cost, from measurements.
#include "tune/cost_table.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace trireme::tune {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string CostKey::id() const {
  return base::concat("cost v", variant, " i", layout.instances, " t", layout.threads, " busy", busy, " g",
                      group, " r", rows);
}

void CostTable::add(const CostKey& key, const std::vector<double>& samples_ns) {
  Cell& cell = cells_[key];
  cell.samples_ns.insert(cell.samples_ns.end(), samples_ns.begin(), samples_ns.end());
  cell.median_ns = median(cell.samples_ns);
}

double CostTable::median_ns(const CostKey& key) const {
  const auto at = cells_.find(key);
  base::check(at != cells_.end(), "not measured: ", key.id());
  return at->second.median_ns;
}

int64_t CostTable::most_rows(size_t variant, Layout layout) const {
  std::map<size_t, int64_t> by_group;
  for (const auto& [key, cell] : cells_) {
    if (key.variant != variant || key.layout != layout || key.busy != layout.instances) continue;
    by_group[key.group] = std::max(by_group[key.group], key.rows);
  }
  int64_t most = by_group.empty() ? 0 : INT64_MAX;
  for (const auto& [group, rows] : by_group) most = std::min(most, rows);
  return most;
}

double CostTable::on_line(size_t variant, Layout layout, int busy, size_t group, int64_t rows) const {
  const auto same = [&](const CostKey& k) {
    return k.variant == variant && k.layout == layout && k.busy == busy && k.group == group;
  };
  const auto above = cells_.lower_bound({variant, layout, busy, group, rows});
  const bool has_above = above != cells_.end() && same(above->first);
  if (has_above && above->first.rows == rows) return above->second.median_ns;
  const bool has_below = above != cells_.begin() && same(std::prev(above)->first);
  base::check(has_above || has_below, "nothing measured of ",
              CostKey{variant, layout, busy, group, rows}.id());
  if (!has_below) return above->second.median_ns;
  const auto below = std::prev(above);
  const auto low = static_cast<double>(below->first.rows);
  const double share = static_cast<double>(rows) / low;
  if (!has_above) return below->second.median_ns * share;
  const double part = (static_cast<double>(rows) - low) / (static_cast<double>(above->first.rows) - low);
  return below->second.median_ns + part * (above->second.median_ns - below->second.median_ns);
}

double CostTable::usual_ns(size_t variant, Layout layout, size_t group, int64_t rows, int busy) const {
  const double in_company = on_line(variant, layout, layout.instances, group, rows);
  if (busy >= layout.instances) return in_company;
  // Alone only a few sizes were measured; the share that company adds lies between theirs.
  const auto share_at = [&](int64_t size) {
    return on_line(variant, layout, 1, group, size) / on_line(variant, layout, layout.instances, group, size);
  };
  int64_t low = 0, high = 0;
  for (const auto& [key, cell] : cells_) {
    if (key.variant != variant || key.layout != layout || key.busy != 1 || key.group != group) continue;
    if (key.rows <= rows) low = key.rows;
    if (key.rows >= rows && high == 0) high = key.rows;
  }
  if (low == 0 && high == 0) return in_company;
  if (low == 0) low = high;
  if (high == 0) high = low;
  const double part = high == low ? 0 : static_cast<double>(rows - low) / static_cast<double>(high - low);
  const double alone = share_at(low) + part * (share_at(high) - share_at(low));
  const double company = static_cast<double>(busy - 1) / static_cast<double>(layout.instances - 1);
  return in_company * (alone + company * (1 - alone));
}

std::vector<double> CostTable::ratios(size_t variant, Layout layout) const {
  std::vector<double> all;
  for (const auto& [key, cell] : cells_) {
    if (key.variant != variant || key.layout != layout || key.busy != layout.instances) continue;
    for (double ns : cell.samples_ns) all.push_back(ns / cell.median_ns);
  }
  return all;
}

double CostTable::mean_ratio(size_t variant, Layout layout) const {
  const std::vector<double> all = ratios(variant, layout);
  return all.empty() ? 1 : std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
}

}  // namespace trireme::tune
