// Lets answers out in the order in which their requests came.
#include "sched/ordered_release.h"

#include <utility>

namespace trireme::sched {

OrderedRelease::Sink OrderedRelease::place(uint32_t level, Sink sink) {
  std::shared_ptr<Line> line;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Line>& at = lines_[level];
    if (!at) at = std::make_shared<Line>();
    line = at;
  }
  uint64_t place = 0;
  {
    const std::lock_guard lock(line->mutex);
    place = line->next_place++;
    line->entries[place].sink = std::move(sink);
  }
  return [line, place](Outcome&& outcome) { finish(*line, place, std::move(outcome)); };
}

void OrderedRelease::finish(Line& line, uint64_t place, Outcome&& outcome) {
  std::unique_lock lock(line.mutex);
  Entry& entry = line.entries.at(place);
  entry.outcome = std::move(outcome);
  entry.is_done = true;
  if (line.is_letting_out) return;
  line.is_letting_out = true;
  while (!line.entries.empty() && line.entries.begin()->second.is_done) {
    Entry first = std::move(line.entries.begin()->second);
    line.entries.erase(line.entries.begin());
    lock.unlock();
    first.sink(std::move(first.outcome));
    lock.lock();
  }
  line.is_letting_out = false;
}

}  // namespace trireme::sched
