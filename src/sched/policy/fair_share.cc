// Fair share between tenants.
#include "sched/policy/fair_share.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

namespace trireme::sched {
namespace {

/// Clients choose names, so the number of remembered ones is bounded.
constexpr size_t kMostTenants = 4096;

double share_of(const Waiting& w) { return w.cost_ns / std::max(1e-9, w.weight); }

}  // namespace

double FairShare::used(uint32_t tenant) const {
  const auto at = used_.find(tenant);
  return at == used_.end() ? now_ : at->second;
}

void FairShare::join(uint32_t tenant, size_t waiting) {
  if (waiting > 0) return;
  if (used_.size() >= kMostTenants) std::erase_if(used_, [&](const auto& t) { return t.second <= now_; });
  double& used = used_.try_emplace(tenant, now_).first->second;
  used = std::max(used, now_);
}

void FairShare::tag(std::span<Waiting> queue) const {
  std::vector<size_t> order(queue.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(queue[a].priority, due_of(queue[a]), a) <
           std::tuple(queue[b].priority, due_of(queue[b]), b);
  });
  std::map<uint32_t, double> next;
  for (size_t i : order) {
    double& tag = next.try_emplace(queue[i].tenant, used(queue[i].tenant)).first->second;
    queue[i].fair_tag = tag;
    tag += share_of(queue[i]);
  }
}

void FairShare::run(const Waiting& request, bool is_head) {
  double& used = used_.try_emplace(request.tenant, now_).first->second;
  used += share_of(request);
  if (is_head) now_ = std::max(now_, request.fair_tag);
}

}  // namespace trireme::sched
