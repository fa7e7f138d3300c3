// Measures what batches cost: sessions run directly, as the scheduler would run them, without a socket.
#pragma once

#include <functional>
#include <string>

#include "tune/cost_table.h"
#include "tune/journal.h"
#include "tune/subject.h"

namespace trireme::tune {

/// Bytes that a layout holds for its largest batch.
struct Footprint {
  int64_t weight_bytes = 0;
  int64_t arena_bytes = 0;  ///< of one instance
};

struct Costs {
  CostTable table;
  std::map<std::pair<size_t, Layout>, Footprint> footprints;
};

struct CostPlan {
  std::vector<Layout> layouts;
  std::vector<int64_t> rows;  ///< batch sizes, ascending
  int64_t bound_ns = 0;       ///< a batch that takes longer alone is of no use; 0: all are measured
  int64_t probe_ns = 0;       ///< time for one measurement
  int passes = 1;
};

using Progress = std::function<void(const std::string&)>;

/// Measures every variant, layout, group and size that could be of use, `passes` times with all others
/// between, each into the journal; what the journal has is not measured again.
Costs measure_costs(const Subject& subject, const CostPlan& plan, Journal& journal, const Progress& progress);

}  // namespace trireme::tune
