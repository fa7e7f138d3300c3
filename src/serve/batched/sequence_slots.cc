// The slots of a model's sequences, shared between tenants.
#include "serve/batched/sequence_slots.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace trireme::serve {

SequenceSlots::Claim SequenceSlots::join(std::string key, uint32_t tenant, double weight, int64_t now_ns) {
  Claim claim;
  Numbers number{0};
  std::list<Waiting> place;
  place.push_back({.key = std::move(key), .since_ns = now_ns, .arrival = arrivals_});
  claim.tenant_ = tenants_.try_emplace(tenant).first;  // the last call that may throw
  claim.number_ = number.extract(number.begin());
  claim.place_ = place.begin();
  Tenant& own = claim.tenant_->second;
  own.weight = weight;
  ++own.sequences;
  own.queue.splice(own.queue.end(), place);
  ++arrivals_;
  return claim;
}

const std::string* SequenceSlots::next() const {
  if (free_.empty() && unused_ == slots_) return nullptr;
  const Tenant* first = nullptr;
  const auto rank = [](const Tenant& t) { return std::tuple(t.load(), t.queue.front().arrival); };
  for (const auto& [number, tenant] : tenants_) {
    if (!tenant.queue.empty() && (first == nullptr || rank(tenant) < rank(*first))) first = &tenant;
  }
  return first == nullptr ? nullptr : &first->queue.front().key;
}

void SequenceSlots::give(Claim& claim) {
  Tenant& tenant = claim.tenant_->second;
  tenant.queue.erase(claim.place_);
  ++tenant.held;
  claim.has_slot_ = true;
  claim.order_ = ++given_;
  if (free_.empty()) {
    claim.number_.value() = unused_++;
  } else {
    claim.number_ = free_.extract(free_.begin());
  }
}

void SequenceSlots::leave(Claim& claim) {
  Tenant& tenant = claim.tenant_->second;
  if (claim.has_slot_) {
    --tenant.held;
    free_.insert(std::move(claim.number_));
    claim.has_slot_ = false;
  } else {
    tenant.queue.erase(claim.place_);
  }
  if (--tenant.sequences == 0) tenants_.erase(claim.tenant_);
}

double SequenceSlots::weights() const {
  double all = 0;
  for (const auto& [number, tenant] : tenants_) all += tenant.weight;
  return all;
}

double SequenceSlots::share(double weight, double all) const {
  return std::max(1.0, static_cast<double>(slots_) * weight / all);
}

std::optional<uint32_t> SequenceSlots::debtor(int64_t now_ns, int64_t patience_ns) const {
  const double all = weights();
  const auto is_owed = [&](const Tenant& t) {
    return !t.queue.empty() && now_ns - t.queue.front().since_ns > patience_ns &&
           static_cast<double>(t.held + 1) <= share(t.weight, all);
  };
  const auto owed =
      std::any_of(tenants_.begin(), tenants_.end(), [&](const auto& entry) { return is_owed(entry.second); });
  if (!owed) return std::nullopt;
  std::optional<uint32_t> debtor;
  double most = 0;
  for (const auto& [number, tenant] : tenants_) {
    if (static_cast<double>(tenant.held) <= share(tenant.weight, all) || tenant.load() <= most) continue;
    most = tenant.load();
    debtor = number;
  }
  return debtor;
}

bool SequenceSlots::may_wait(uint32_t tenant, double weight, size_t waiting, size_t most) const {
  if (waiting < most) return true;
  const auto own = tenants_.find(tenant);
  const bool is_new = own == tenants_.end();
  const double all = weights() + (is_new ? weight : 0);
  const size_t requests = is_new ? 0 : own->second.requests;
  return static_cast<double>(requests) < static_cast<double>(most) * weight / all;
}

}  // namespace trireme::serve
