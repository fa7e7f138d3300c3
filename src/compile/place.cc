// Memory placement: places buffers with live intervals, largest first, in the lowest gap that fits.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "compile/program.h"

namespace trireme::compile {
namespace {

/// Buffers by offset.
using Placed = std::vector<const Interval*>;

bool is_lower(const Interval* a, const Interval* b) { return a->offset < b->offset; }

void insert_by_offset(Placed& list, const Interval* p) {
  list.insert(std::upper_bound(list.begin(), list.end(), p, is_lower), p);
}

/// Finds the placed buffers that live at some time of an interval: those that are alive at its first step,
/// kept at the nodes of a tree over all steps, and those whose first step follows.
class PlacedBuffers {
 public:
  explicit PlacedBuffers(int steps) {
    while (leaves_ < static_cast<size_t>(steps)) leaves_ *= 2;
    tree_.resize(2 * leaves_);
    beginning_.resize(leaves_);
  }

  void insert(const Interval& b) {
    insert_by_offset(beginning_[static_cast<size_t>(b.first)], &b);
    // The largest runs of steps that the tree has, from both ends.
    size_t low = leaves_ + static_cast<size_t>(b.first), high = leaves_ + static_cast<size_t>(b.last) + 1;
    for (; low < high; low /= 2, high /= 2) {
      if (low % 2 == 1) insert_by_offset(tree_[low++], &b);
      if (high % 2 == 1) insert_by_offset(tree_[--high], &b);
    }
  }

  /// Those at `from` or above that live together with `b`, by offset.
  const Placed& beside(const Interval& b, int64_t from) {
    found_.clear();
    for (size_t node = leaves_ + static_cast<size_t>(b.first); node > 0; node /= 2) gather(tree_[node], from);
    for (int step = b.first + 1; step <= b.last; ++step) gather(beginning_[static_cast<size_t>(step)], from);
    std::sort(found_.begin(), found_.end(), is_lower);
    return found_;
  }

 private:
  void gather(const Placed& list, int64_t from) {
    const auto at = std::lower_bound(list.begin(), list.end(), from,
                                     [](const Interval* p, int64_t offset) { return p->offset < offset; });
    found_.insert(found_.end(), at, list.end());
  }

  size_t leaves_ = 1;
  std::vector<Placed> tree_;       // node 1 is the root, 2 n and 2 n + 1 are the halves of n
  std::vector<Placed> beginning_;  // by first step
  Placed found_;
};

}  // namespace

int64_t place(std::vector<Interval>& intervals, int64_t alignment) {
  const auto aligned = [alignment](int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  int steps = 0;
  for (const Interval& b : intervals) steps = std::max(steps, b.last + 1);
  PlacedBuffers placed(steps);
  // Ends of the last buffers of a size and an interval: below it none of the same kind has room.
  std::map<std::tuple<int64_t, int, int>, int64_t> full;
  int64_t total = 0;
  for (size_t i : order) {
    Interval& buffer = intervals[i];
    int64_t& floor = full[{buffer.bytes, buffer.first, buffer.last}];
    int64_t offset = floor;
    for (const Interval* p : placed.beside(buffer, floor)) {
      if (offset + buffer.bytes <= p->offset) break;
      offset = std::max(offset, aligned(p->offset + p->bytes));
    }
    buffer.offset = offset;
    floor = aligned(offset + buffer.bytes);
    total = std::max(total, floor);
    placed.insert(buffer);
  }
  return total;
}

}  // namespace trireme::compile
