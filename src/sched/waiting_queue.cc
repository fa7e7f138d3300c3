// The requests that wait for one model, in the order in which they run.
#include "sched/waiting_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace trireme::sched {
namespace {

/// Queues up to this size are seen whole; more than the usual bound of a queue.
constexpr size_t kWhole = 1024;
/// The most requests seen of all tenants together in longer queues.
constexpr size_t kMostOfTenants = 4096;
/// A sweep holds the scheduler's lock for a fraction of a millisecond; sweeps are at least this far apart.
constexpr size_t kSlice = 2048;
constexpr int64_t kBetweenSweepsNs = 2 * base::kNsPerMs;
/// Clients do not announce that they leave, so they are polled at this interval.
constexpr int64_t kAskNs = 20 * base::kNsPerMs;

bool is_for(const Request& request, int instance) {
  return request.instance < 0 || request.instance == instance;
}

/// When it expires; never if its deadline only delays it and has passed already.
int64_t expiry_of(const Waiting& w, bool is_late) {
  const int64_t deadline_ns = w.deadline_ns == 0 || is_late ? INT64_MAX : w.deadline_ns;
  return w.finish_ns == 0 ? deadline_ns : std::min(deadline_ns, w.finish_ns);
}

}  // namespace

/// Where memory ends, the queue is as it was and the request still the caller's.
void WaitingQueue::push(Request&& request, const Waiting& waiting) {
  const Key key = key_of(waiting, arrivals_++);
  ++levels_[waiting.priority];
  due_ += waiting.finish_ns != 0;
  try {
    if (is_fair_) {
      Tenant& tenant = tenants_[waiting.tenant];
      tenant.keys.insert(key);
      tenant.weight = waiting.weight;
    }
    // Most arrive in order. The request is moved once there is room for it.
    items_.emplace_hint(items_.end(), std::piecewise_construct, std::forward_as_tuple(key),
                        std::forward_as_tuple(std::move(request), waiting));
  } catch (...) {
    forget(key, waiting);
    throw;
  }
  const int64_t expiry_ns = expiry_of(waiting, false);
  earliest_ns_ = std::min(earliest_ns_, expiry_ns);
  earliest_of_round_ns_ = std::min(earliest_of_round_ns_, expiry_ns);
}

size_t WaitingQueue::of_level(uint32_t priority) const {
  const auto at = levels_.find(priority);
  return at == levels_.end() ? 0 : at->second;
}

size_t WaitingQueue::of_tenant(uint32_t tenant) const {
  const auto at = tenants_.find(tenant);
  return at == tenants_.end() ? 0 : at->second.keys.size();
}

void WaitingQueue::add(View& view, Items::iterator at) {
  view.waiting.push_back(at->second.waiting);
  view.places.push_back(at);
}

WaitingQueue::View WaitingQueue::view(int instance, int64_t max_rows) {
  View view;
  const bool is_whole = items_.size() <= kWhole;
  if (is_fair_ && !is_whole) {
    view_tenants(view, instance);
    return view;
  }
  // With due times or shares, a later request may be better than a full batch of the first; all are compared.
  const bool may_end = due_ == 0 && !is_fair_;
  int64_t rows = 0;
  for (auto at = items_.begin(); at != items_.end() && (is_whole || view.places.size() < kWhole); ++at) {
    if (!is_for(at->second.request, instance)) continue;
    add(view, at);
    if (at->second.waiting.group == view.waiting[0].group) rows += at->second.waiting.rows;
    if (may_end && rows >= max_rows && !at->first.is_late) break;
  }
  return view;
}

/// The first requests of each tenant: the batch is among them, whichever tenant comes next.
void WaitingQueue::view_tenants(View& view, int instance) {
  const size_t each = std::max<size_t>(1, kMostOfTenants / std::max<size_t>(1, tenants_.size()));
  std::vector<Key> keys;
  for (const auto& [number, tenant] : tenants_) {
    auto key = tenant.keys.begin();
    for (size_t i = 0; i < each && key != tenant.keys.end(); ++i, ++key) keys.push_back(*key);
  }
  std::sort(keys.begin(), keys.end());
  for (const Key& key : keys) {
    const auto at = items_.find(key);
    if (is_for(at->second.request, instance)) add(view, at);
  }
}

void WaitingQueue::forget(const Key& key, const Waiting& waiting) {
  const auto level = levels_.find(waiting.priority);
  if (--level->second == 0) levels_.erase(level);
  due_ -= waiting.finish_ns != 0;
  if (!is_fair_) return;
  const auto tenant = tenants_.find(waiting.tenant);
  if (tenant == tenants_.end()) return;  // there was no memory for it
  tenant->second.keys.erase(key);
  if (tenant->second.keys.empty()) tenants_.erase(tenant);
}

Request WaitingQueue::take(Items::iterator place) {
  forget(place->first, place->second.waiting);
  Request request = std::move(place->second.request);
  items_.erase(place);
  return request;
}

std::vector<Waiting> WaitingQueue::all() const {
  std::vector<Waiting> list;
  list.reserve(items_.size());
  for (const auto& [key, item] : items_) list.push_back(item.waiting);
  return list;
}

uint32_t WaitingQueue::greediest(const Waiting& also) const {
  std::map<uint32_t, double> loads;
  const auto load = [](size_t count, double weight) {
    return static_cast<double>(count) / std::max(1e-9, weight);
  };
  for (const auto& [number, tenant] : tenants_) loads[number] = load(tenant.keys.size(), tenant.weight);
  loads[also.tenant] += load(1, also.weight);
  return std::max_element(loads.begin(), loads.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

Request WaitingQueue::evict(uint32_t tenant) {
  const auto at = tenants_.find(tenant);
  base::check(at != tenants_.end(), "a tenant without requests makes no room");
  return take(items_.find(*at->second.keys.rbegin()));
}

std::vector<Request> WaitingQueue::take_of_instance(int instance) {
  std::vector<Request> taken;
  for (auto at = items_.begin(); at != items_.end();) {
    const auto next = std::next(at);
    if (at->second.request.instance == instance) taken.push_back(take(at));
    at = next;
  }
  return taken;
}

std::vector<Request> WaitingQueue::take_all() {
  std::vector<Request> taken;
  while (!items_.empty()) taken.push_back(take(items_.begin()));
  return taken;
}

/// Moves it behind all others of its priority.
void WaitingQueue::delay(Items::iterator at) {
  if (is_fair_) {
    auto& keys = tenants_.at(at->second.waiting.tenant).keys;
    auto key = keys.extract(at->first);
    key.value().is_late = true;
    keys.insert(std::move(key));
  }
  auto node = items_.extract(at);
  node.key().is_late = true;
  items_.insert(std::move(node));
}

void WaitingQueue::sweep(int64_t now_ns, Leavers& leavers) {
  swept_ns_ = now_ns;
  auto at = swept_ ? items_.upper_bound(*swept_) : items_.begin();
  if (!swept_) earliest_of_round_ns_ = INT64_MAX;
  for (size_t i = 0; i < kSlice && at != items_.end(); ++i) {
    swept_ = at->first;
    const Waiting& w = at->second.waiting;
    const Request& r = at->second.request;
    const int64_t expiry_ns = expiry_of(w, at->first.is_late);
    const bool is_delayed = w.runs_late && w.deadline_ns == expiry_ns;
    const auto next = std::next(at);
    if (r.cancelled && r.cancelled()) {
      leavers.cancelled.push_back(take(at));
    } else if (expiry_ns > now_ns) {
      earliest_of_round_ns_ = std::min(earliest_of_round_ns_, expiry_ns);
    } else if (is_delayed) {
      if (w.finish_ns != 0) earliest_of_round_ns_ = std::min(earliest_of_round_ns_, w.finish_ns);
      delay(at);
    } else {
      const bool is_hopeless = w.finish_ns != 0 && w.finish_ns <= now_ns;
      (is_hopeless ? leavers.hopeless : leavers.expired).push_back(take(at));
    }
    at = next;
  }
  if (at != items_.end()) return;
  swept_.reset();
  earliest_ns_ = earliest_of_round_ns_;
}

int64_t WaitingQueue::next_sweep_ns() const {
  if (items_.empty()) return INT64_MAX;
  // Continues a round that has begun; else due when a deadline passes, or when clients must be polled.
  const int64_t due_ns = swept_ ? swept_ns_ : std::min(earliest_ns_, swept_ns_ + kAskNs);
  return std::max(due_ns, swept_ns_ + kBetweenSweepsNs);
}

}  // namespace trireme::sched
