// A configuration under consideration.
#include "tune/candidate.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

namespace trireme::tune {

std::string Candidate::id() const {
  std::string text =
      base::concat("v", variant, " i", layout.instances, " t", layout.threads, " b", max_batch, " w",
                   window_ns / base::kNsPerUs, keeps_window ? "us k" : "us a", runs_whole ? " whole" : "");
  for (size_t i = 0; i < row_buckets.size(); ++i)
    text += (i == 0 ? " " : ",") + std::to_string(row_buckets[i]);
  return text;
}

Batching Candidate::batching() const {
  Batching b;
  b.limits.max_rows = std::max<int64_t>(1, max_batch);
  b.limits.window_ns = max_batch > 0 ? window_ns : 0;
  b.limits.instances = layout.instances;
  b.is_window_adaptive = !keeps_window;
  b.runs_whole = runs_whole;
  b.row_buckets = row_buckets;
  return b;
}

std::vector<int64_t> row_buckets(int64_t most, bool fine) {
  std::vector<int64_t> list;
  for (int64_t rows = 1; rows < most; rows *= 2) {
    list.push_back(rows);
    const int64_t between = rows + rows / 2;
    if (fine && rows > 1 && between < most) list.push_back(between);
  }
  list.push_back(most);
  return list;
}

}  // namespace trireme::tune
