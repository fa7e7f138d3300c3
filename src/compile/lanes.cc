// Decides which collectives run aside of the computation, and which steps wait for them.
#include "compile/lanes.h"

#include <algorithm>

#include "ops/collective/issue.h"

namespace trireme::compile {
namespace {

/// Walks through the steps in order and tracks the collectives that use each root's memory.
class Lanes {
 public:
  explicit Lanes(Program& program)
      : program_(program), written_(program.slots.size(), -1), read_(program.slots.size(), -1) {}

  void run() {
    const int count = static_cast<int>(program_.steps.size());
    needs_.reserve(program_.steps.size());
    for (int s = 0; s < count; ++s) needs_.push_back(earlier_collective(s));
    for (int s = 0; s < count; ++s) {
      Step& step = program_.steps[static_cast<size_t>(s)];
      step.is_aside = !step.axes.empty() && (is_computed_meanwhile(s) || is_same_group_under_way(step.axes));
      if (step.is_aside) {
        under_way_.push_back(s);
      } else {
        wait(step, needs_[static_cast<size_t>(s)]);
      }
    }
    for (int s = 0; s < count; ++s) close(s, count);
  }

 private:
  size_t root(SlotId id) const { return index(program_.slot(id).root); }

  /// The last collective before step s that writes what s reads or writes, or reads what s writes.
  int earlier_collective(int s) {
    const Step& step = program_.steps[static_cast<size_t>(s)];
    int last = -1;
    for (const SlotId id : step.in) {
      if (id != kNoSlot) last = std::max(last, written_[root(id)]);
    }
    for (const SlotId id : step.out) {
      if (id != kNoSlot) last = std::max({last, written_[root(id)], read_[root(id)]});
    }
    if (step.axes.empty()) return last;
    for (const SlotId id : step.in) {
      if (id != kNoSlot) read_[root(id)] = s;
    }
    for (const SlotId id : step.out) {
      if (id != kNoSlot) written_[root(id)] = s;
    }
    return last;
  }

  /// Whether a step that is no collective comes after collective s and before the first step that needs it.
  bool is_computed_meanwhile(int s) const {
    for (size_t t = static_cast<size_t>(s) + 1; t < program_.steps.size(); ++t) {
      const bool is_collective = !program_.steps[t].axes.empty();
      if (needs_[t] >= s && !is_collective) return false;
      if (!is_collective) return true;
    }
    return false;
  }

  bool is_same_group_under_way(const std::string& axes) const {
    return std::any_of(under_way_.begin(), under_way_.end(),
                       [&](int s) { return program_.steps[static_cast<size_t>(s)].axes == axes; });
  }

  /// Waits for the last aside collective up to `need`; those before it are then complete, as they run in
  /// order.
  void wait(Step& step, int need) {
    int last = -1;
    for (const int s : under_way_) last = s <= need ? s : last;
    if (last < 0) return;
    step.after_aside = last;
    std::erase_if(under_way_, [&](int s) { return s <= last; });
  }

  void close(int s, int count) {
    Step& step = program_.steps[static_cast<size_t>(s)];
    if (!step.is_aside) return;
    step.until = count;
    for (int t = s + 1; t < count; ++t) {
      const Step& waits = program_.steps[static_cast<size_t>(t)];
      if (waits.is_aside || waits.after_aside < s) continue;
      step.until = t;
      return;
    }
  }

  Program& program_;
  std::vector<int> written_, read_;  ///< by root: the last collective that writes or reads it
  std::vector<int> needs_;           ///< by step
  std::vector<int> under_way_;       ///< aside steps that no step has waited for
};

}  // namespace

std::vector<size_t> step_order(const ir::Graph& sorted, bool overlap) {
  std::vector<ops::Issue> issues;
  if (overlap) issues = ops::issue_order(sorted, true);
  std::vector<size_t> order;
  size_t next = 0;
  for (size_t n = 0; n < sorted.nodes().size(); ++n) {
    for (; next < issues.size() && issues[next].before <= n; ++next) order.push_back(issues[next].node);
    if (!overlap || !sorted.nodes()[n].op->schema.is_collective) order.push_back(n);
  }
  return order;
}

void plan_lanes(Program& program) { Lanes(program).run(); }

}  // namespace trireme::compile
