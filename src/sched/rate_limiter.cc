// Grants instances the right to run, according to shared resources and weights.
#include "sched/rate_limiter.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "base/error.h"

namespace trireme::sched {

RateTotal RateTotal::parse(const std::string& text) {
  const size_t first = text.find(':'), second = text.find(':', first + 1);
  RateTotal total{.name = text.substr(0, first)};
  const std::string count = first == std::string::npos ? "" : text.substr(first + 1, second - first - 1);
  const std::string place = second == std::string::npos ? "" : text.substr(second + 1);
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), total.count);
  const bool is_count = error == std::errc() && end == count.data() + count.size() && total.count >= 0;
  base::require(!total.name.empty() && is_count && (place.empty() || place == "0" || place == "global"),
                "a resource is name:count, name:count:0 (the only device) or name:count:global, got '", text,
                "'");
  if (!place.empty()) total.is_global = place == "global";
  return total;
}

RateLimiter::RateLimiter(const std::vector<RateTotal>& totals) {
  for (const RateTotal& t : totals) {
    base::require(resources_.count(t.name) == 0, "resource '", t.name, "' has two totals");
    resources_[t.name] = {.told = t.count, .told_global = t.is_global, .is_global = t.is_global};
  }
}

uint64_t RateLimiter::add(RateClaim claim, std::function<void()> on_grant) {
  const std::lock_guard lock(mutex_);
  claim.priority = std::max<uint32_t>(1, claim.priority);
  std::set<std::string> names;
  for (const RateNeed& need : claim.needs) {
    base::require(names.insert(need.name).second, "resource '", need.name, "' is needed twice");
    base::require(need.count >= 0, "resource '", need.name, "' is needed ", need.count, " times");
    const auto at = resources_.find(need.name);
    if (at == resources_.end()) continue;
    base::require(!at->second.is_global || *at->second.is_global == need.is_global, "resource '", need.name,
                  "' is global in one place and of the device in another");
    base::require(!at->second.told || need.count <= *at->second.told, "an instance needs ", need.count,
                  " of resource '", need.name, "', the server has ", at->second.told.value_or(0));
  }
  for (const RateNeed& need : claim.needs) resources_[need.name].is_global = need.is_global;
  const uint64_t number = ++last_number_;
  instances_[number] = {.claim = std::move(claim), .on_grant = std::move(on_grant)};
  return number;
}

void RateLimiter::remove(uint64_t instance) {
  const std::lock_guard lock(mutex_);
  const auto at = instances_.find(instance);
  if (at == instances_.end()) return;
  if (at->second.state == Instance::State::holds) take(at->second, -1);
  const RateClaim gone = std::move(at->second.claim);
  instances_.erase(at);
  for (const RateNeed& need : gone.needs) {
    Resource& resource = resources_.at(need.name);
    if (!is_needed(need.name)) resource.is_global = resource.told_global;
  }
  grant_waiting();
}

bool RateLimiter::ask(uint64_t instance) {
  const std::lock_guard lock(mutex_);
  Instance& asking = instances_.at(instance);
  base::check(asking.state == Instance::State::idle, "an instance asks twice for one run");
  return join_waiting(asking);
}

bool RateLimiter::join_waiting(Instance& instance) {
  instance.since = ++asks_;
  // An idle instance saves nothing up; otherwise it would keep all others out until it had caught up.
  instance.share = std::max(instance.share, now_);
  instance.state = Instance::State::waits;
  const auto told = std::exchange(instance.on_grant, [] {});  // the result of this call informs this one
  grant_waiting();
  instance.on_grant = told;
  return instance.state == Instance::State::holds;
}

bool RateLimiter::give_back(uint64_t instance, bool has_run, bool asks_again) {
  const std::lock_guard lock(mutex_);
  Instance& done = instances_.at(instance);
  if (done.state == Instance::State::holds) take(done, -1);
  done.state = Instance::State::idle;
  if (has_run) done.share += done.claim.priority;
  if (asks_again) return join_waiting(done);
  grant_waiting();
  return false;
}

/// The largest need of any instance, unless the server was given a total.
int64_t RateLimiter::total(const std::string& name) const {
  if (const auto& told = resources_.at(name).told) return *told;
  int64_t most = 0;
  for (const auto& [number, instance] : instances_) {
    for (const RateNeed& need : instance.claim.needs) {
      if (need.name == name) most = std::max(most, need.count);
    }
  }
  return most;
}

bool RateLimiter::is_needed(const std::string& name) const {
  return std::any_of(instances_.begin(), instances_.end(), [&](const auto& numbered) {
    const std::vector<RateNeed>& needs = numbered.second.claim.needs;
    return std::any_of(needs.begin(), needs.end(), [&](const RateNeed& need) { return need.name == name; });
  });
}

bool RateLimiter::is_free(const Instance& instance) const {
  return std::all_of(instance.claim.needs.begin(), instance.claim.needs.end(), [&](const RateNeed& need) {
    return resources_.at(need.name).used + need.count <= total(need.name);
  });
}

void RateLimiter::take(Instance& instance, int sign) {
  for (const RateNeed& need : instance.claim.needs) resources_.at(need.name).used += sign * need.count;
}

void RateLimiter::grant_waiting() {
  std::vector<Instance*> waiting;
  for (auto& [number, instance] : instances_) {
    if (instance.state == Instance::State::waits) waiting.push_back(&instance);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Instance* a, const Instance* b) {
    return std::pair(a->share, a->since) < std::pair(b->share, b->since);
  });
  std::set<std::string> spoken_for;  // needed by earlier ones that cannot run yet
  for (Instance* instance : waiting) {
    const auto& needs = instance->claim.needs;
    const bool overtakes = std::any_of(needs.begin(), needs.end(), [&](const RateNeed& need) {
      return need.count > 0 && spoken_for.count(need.name) > 0;
    });
    if (overtakes || !is_free(*instance)) {
      for (const RateNeed& need : needs) spoken_for.insert(need.name);
      continue;
    }
    take(*instance, 1);
    now_ = std::max(now_, instance->share);
    instance->state = Instance::State::holds;
    instance->on_grant();
  }
}

}  // namespace trireme::sched
