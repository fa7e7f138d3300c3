// The search for the highest load that a server sustains.
#pragma once

#include <functional>
#include <vector>

#include "load/report/report.h"

namespace trireme::load {

/// A load is sustained if the goals are met, the server kept up and fewer than one request in 100 failed.
/// Fewer answers than requests mean a queue that grows, however good the latencies of a short run look.
bool sustained(const Measured& m);

/// A search for the highest load.
struct Search {
  double start = 1;
  double least = 0;       // no load is less
  double most = 0;        // none is more
  bool is_whole = false;  // loads are whole numbers
  std::function<Measured(double)> run;
};

/// Doubles the load from the start until one fails (or halves it until one holds), then bisects the gap to 5
/// %, or to neighbours if loads are whole numbers; at most 24 runs. Gives the highest load that was
/// sustained, 0 if none was. `runs` has all that were tried, by load, an interrupted one last; those so far
/// if `run` throws.
double find_highest(const Search& search, std::vector<Measured>& runs);

}  // namespace trireme::load
