// Memory placement: places buffers with live intervals, largest first, in the lowest gap that fits.
#include <algorithm>
#include <numeric>

#include "compile/program.h"

namespace trireme::compile {
namespace {

bool overlap_in_time(const Interval& a, const Interval& b) { return a.first <= b.last && b.first <= a.last; }

}  // namespace

int64_t place(std::vector<Interval>& intervals, int64_t alignment) {
  const auto aligned = [alignment](int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  std::vector<const Interval*> placed;  // sorted by offset
  int64_t total = 0;
  for (size_t i : order) {
    Interval& buffer = intervals[i];
    int64_t offset = 0;
    for (const Interval* p : placed) {
      if (!overlap_in_time(*p, buffer)) continue;
      if (offset + buffer.bytes <= p->offset) break;
      offset = std::max(offset, aligned(p->offset + p->bytes));
    }
    buffer.offset = offset;
    total = std::max(total, aligned(offset + buffer.bytes));
    const auto at =
        std::upper_bound(placed.begin(), placed.end(), &buffer,
                         [](const Interval* a, const Interval* b) { return a->offset < b->offset; });
    placed.insert(at, &buffer);
  }
  return total;
}

}  // namespace trireme::compile
