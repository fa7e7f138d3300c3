// The requests that wait for one model, in the order in which they go, however many there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "sched/policy/batch_policy.h"
#include "sched/request.h"

namespace trireme::sched {

/// Kept in order of priority, due time and arrival, so that a batch costs as much with a hundred thousand
/// waiting as with a thousand: the policy sees those who may go next, and who is late or has left further
/// back is looked for a slice at a time. Not for several threads at once.
class WaitingQueue {
 public:
  /// `is_fair`: also kept by tenant.
  explicit WaitingQueue(bool is_fair) : is_fair_(is_fair) {}

  void push(Request&& request, const Waiting& waiting);
  size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  size_t of_level(uint32_t priority) const;
  size_t of_tenant(uint32_t tenant) const;

  struct Item {
    Request request;
    Waiting waiting;
  };
  struct Key {
    uint32_t priority = 0;
    bool is_late = false;  ///< past its deadline, and to run behind all others of its priority
    int64_t due_ns = 0;
    uint64_t number = 0;  ///< of its arrival
    auto operator<=>(const Key&) const = default;
  };
  using Items = std::map<Key, Item>;
  /// What the policy may choose from, in order; places are good until their items are taken.
  struct View {
    std::vector<Waiting> waiting;
    std::vector<Items::iterator> places;
  };
  /// Of those that `instance` may run: the first, until the group of the very first would fill `max_rows`.
  /// With due times or tenants all, while no more than a thousand wait; else the first thousand, or some of
  /// each tenant.
  View view(int instance, int64_t max_rows);
  Request take(Items::iterator place);
  std::vector<Waiting> all() const;

  /// Which tenant has most waiting for its weight; `also` counts as waiting.
  uint32_t greediest(const Waiting& also) const;
  /// The last of this tenant's, to make room for another's. There is one.
  Request evict(uint32_t tenant);
  /// All that must be run by this instance.
  std::vector<Request> take_of_instance(int instance);
  std::vector<Request> take_all();

  /// Who leaves without having run.
  struct Leavers {
    std::vector<Request> expired, hopeless, cancelled;
  };
  /// Looks through the next slice for who left or is too late. Delayed ones go behind.
  void sweep(int64_t now_ns, Leavers& leavers);
  /// When a sweep is worth its while: a deadline passes, or somebody may have left.
  int64_t next_sweep_ns() const;

 private:
  struct Tenant {
    std::set<Key> keys;
    double weight = 1;
  };
  static Key key_of(const Waiting& waiting, uint64_t number) {
    return {.priority = waiting.priority, .due_ns = due_of(waiting), .number = number};
  }
  void add(View& view, Items::iterator at);
  void view_tenants(View& view, int instance);
  void forget(const Key& key, const Waiting& waiting);
  void delay(Items::iterator at);

  const bool is_fair_;
  Items items_;
  std::map<uint32_t, size_t> levels_;
  std::map<uint32_t, Tenant> tenants_;  ///< of those that wait, where shares are fair
  uint64_t arrivals_ = 0;
  size_t due_ = 0;  ///< requests whose answer is due at a time
  // The sweep: no deadline is before earliest_ns_, but for those that have passed while it went round.
  int64_t earliest_ns_ = INT64_MAX, earliest_of_round_ns_ = INT64_MAX, swept_ns_ = 0;
  std::optional<Key> swept_;  ///< up to here in this round
};

}  // namespace trireme::sched
