// What batches cost, from measurements: by variant, layout, group of inputs and rows.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tune/candidate.h"

namespace trireme::tune {

/// One thing to measure: batches of `rows` of a group, run again and again by `busy` of the instances.
struct CostKey {
  size_t variant = 0;
  Layout layout;
  int busy = 1;  ///< 1 or all
  size_t group = 0;
  int64_t rows = 1;
  auto operator<=>(const CostKey&) const = default;
  std::string id() const;
};

class CostTable {
 public:
  void add(const CostKey& key, const std::vector<double>& samples_ns);
  bool has(const CostKey& key) const { return cells_.contains(key); }
  /// Median of all samples of a key that was measured.
  double median_ns(const CostKey& key) const;
  /// The most rows that were measured of every group with all instances busy; 0: none.
  int64_t most_rows(size_t variant, Layout layout) const;
  /// Usual time of a batch: between measured sizes on a straight line, beyond the largest in proportion. With
  /// fewer instances busy than all, between the time alone and that in company.
  double usual_ns(size_t variant, Layout layout, size_t group, int64_t rows, int busy) const;
  /// Samples over their median, of all sizes of a layout.
  std::vector<double> ratios(size_t variant, Layout layout) const;
  /// Their mean: how much longer than usual a batch takes on average.
  double mean_ratio(size_t variant, Layout layout) const;

 private:
  double on_line(size_t variant, Layout layout, int busy, size_t group, int64_t rows) const;

  struct Cell {
    std::vector<double> samples_ns;
    double median_ns = 0;
  };
  std::map<CostKey, Cell> cells_;
};

/// The middle one of the values, or the mean of the two in the middle; 0 for none.
double median(std::vector<double> values);

}  // namespace trireme::tune
