// Fair share between tenants: who goes next where several have work, by what each has had so far.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "sched/policy/batch_policy.h"

namespace trireme::sched {

/// Start-time fair queueing over the predicted cost of requests: a tenant's time goes on by cost / weight
/// with each request that is run, and the one that is furthest behind goes first. Who was idle begins where
/// the others are, so nothing is saved up. Goyal, Vin & Cheng 1996. Not for several threads at once.
class FairShare {
 public:
  /// A request joins the queue, in which `waiting` of its tenant are already.
  void join(uint32_t tenant, size_t waiting);
  /// Gives each its start tag: its tenant's time after those of the tenant that go before it (by priority,
  /// due time, arrival). The policy orders by tags within a priority.
  void tag(std::span<Waiting> queue) const;
  /// A tagged request is run; `is_head`: it is the batch's first, by whose tag time goes on.
  void run(const Waiting& request, bool is_head);

 private:
  double used(uint32_t tenant) const;

  std::map<uint32_t, double> used_;  ///< a tenant's time; those not here are at now_
  double now_ = 0;
};

}  // namespace trireme::sched
