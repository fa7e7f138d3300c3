// What the verbs that print rates hold them against: measured here, in the same process, before they print.
#pragma once

#include <vector>

#include "base/report/rate.h"
#include "ir/graph.h"
#include "passes/strategy_options.h"

namespace trireme::cli {

/// Where work is done: `threads` of all ranks together; of GPUs each rank has one.
struct Place {
  std::string device = "cpu";
  int threads = 1, ranks = 1;
};

/// Products of square matrices at the precision of a run; about 0.15 s. Not measured (0) on emulated
/// devices, for fp8, and where ranks share a GPU.
base::Ceiling product_ceiling(const Place& place, passes::Precision precision);

/// Reading so many bytes again and again by all threads, so that what fits the caches is held against them;
/// at most 512 MiB, which no cache holds. On a GPU its copies, for what no cache of it holds.
base::Ceiling read_ceiling(const Place& place, int64_t bytes);

/// FLOPs of one run by the schemas' costs, whatever ranks, stages or slices it is spread over.
double whole_flop(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes);

}  // namespace trireme::cli
