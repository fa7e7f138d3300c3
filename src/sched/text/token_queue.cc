// Requests for texts that wait.
#include "sched/text/token_queue.h"

#include <algorithm>
#include <cmath>

namespace trireme::sched {

double TokenQueue::had(uint32_t tenant) const {
  const auto at = had_.find(tenant);
  return at == had_.end() ? 0 : at->second;
}

void TokenQueue::push(Entry entry) {
  const Standing standing = entry.standing;
  const int64_t number = entry.number;
  if (!waiting_.contains(standing.tenant)) {
    double least = waiting_.empty() ? had(last_) : INFINITY;
    for (const auto& [tenant, count] : waiting_) least = std::min(least, had(tenant));
    had_[standing.tenant] = std::max(had(standing.tenant), least);
  }
  ++waiting_[standing.tenant];
  if (standing.deadline_ns > 0 && !entry.has_begun) deadlines_.emplace(standing.deadline_ns, number);
  standings_.emplace(number, standing);
  levels_[standing.priority][standing.tenant].emplace(number, std::move(entry));
}

size_t TokenQueue::size_of(uint32_t priority) const {
  const auto level = levels_.find(priority);
  size_t count = 0;
  if (level == levels_.end()) return count;
  for (const auto& [tenant, line] : level->second) count += line.size();
  return count;
}

const TokenQueue::Entry* TokenQueue::first() const {
  if (levels_.empty()) return nullptr;
  const Entry* best = nullptr;
  double least = 0;
  for (const auto& [tenant, line] : levels_.begin()->second) {
    const Entry& head = line.begin()->second;
    const double own = had(tenant);
    if (best != nullptr && (own > least || (own == least && head.number > best->number))) continue;
    best = &head;
    least = own;
  }
  return best;
}

TokenQueue::Entry TokenQueue::take(uint32_t priority, uint32_t tenant, int64_t number) {
  const auto level = levels_.find(priority);
  const auto line = level->second.find(tenant);
  const auto at = line->second.find(number);
  Entry entry = std::move(at->second);
  line->second.erase(at);
  if (line->second.empty()) level->second.erase(line);
  if (level->second.empty()) levels_.erase(level);
  if (--waiting_[tenant] == 0) waiting_.erase(tenant);
  deadlines_.erase({entry.standing.deadline_ns, number});
  standings_.erase(number);
  return entry;
}

TokenQueue::Entry TokenQueue::pop() {
  const Entry* next = first();
  base::check(next != nullptr, "nobody waits");
  last_ = next->standing.tenant;
  return take(next->standing.priority, next->standing.tenant, next->number);
}

bool TokenQueue::remove(int64_t number) {
  const auto at = standings_.find(number);
  if (at == standings_.end()) return false;
  const Standing standing = at->second;
  take(standing.priority, standing.tenant, number);
  return true;
}

int64_t TokenQueue::remove_expired(int64_t now_ns) {
  if (deadlines_.empty() || deadlines_.begin()->first >= now_ns) return -1;
  const int64_t number = deadlines_.begin()->second;
  remove(number);
  return number;
}

}  // namespace trireme::sched
