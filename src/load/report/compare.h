// Two load tests side by side: what changed, and whether the change is more than noise.
#pragma once

#include <string>
#include <vector>

#include "base/text/json.h"
#include "base/text/options.h"
#include "load/result.h"

namespace trireme::load {

struct CompareOptions {
  std::string before, after;
  double tolerance = 5;
  std::string json;

  void fields(base::OptionList& f) {
    f.add("before", &before, "results that `trireme load --json` wrote").positional().required();
    f.add("after", &after, "results to hold against them").positional().required();
    f.add("tolerance", &tolerance, "percent that a figure may be worse, surely; more: exit 1").at_least(0);
    f.add("json", &json, "write the comparison to this file");
  }
};

/// A value with its 95 % interval; without width the uncertainty is not known.
struct Figure {
  double value = 0;
  Bounds bounds;
};

/// 95 % interval of after - before for independent measurements: from the two intervals, each side by the
/// root of the summed squares (Zou & Donner 2008, "MOVER"); right also where the intervals are lopsided.
Bounds difference_bounds(const Figure& before, const Figure& after);

/// 95 % interval of a share (Wilson 1927).
Bounds share_bounds(int64_t count, int64_t of);

enum class Verdict { same, better, worse, unknown };

/// One figure of one load in both tests.
struct Difference {
  std::string label;   // of the run: "c=16"
  std::string figure;  // "throughput", "p99", "failed"
  Figure before, after;
  double change = 0;  // percent of before; for shares: percentage points
  Bounds change_95;   // of it
  Verdict verdict = Verdict::unknown;
};

struct Comparison {
  std::vector<Difference> differences;
  std::vector<std::string> notes;  // options that differ, runs that only one test has, verdicts that changed
  bool turned_invalid = false;     // a scenario that was valid before
};

/// Compares runs of equal labels. Throws invalid_argument if a file is no result of `trireme load`, or if no
/// label is in both.
Comparison compare(const base::Json& before, const base::Json& after);

/// False if a figure is worse by more than `tolerance` percent beyond doubt: its whole interval is.
bool within(const Comparison& comparison, double tolerance);

std::string comparison_text(const Comparison& comparison);
base::Json comparison_json(const Comparison& comparison);

}  // namespace trireme::load
