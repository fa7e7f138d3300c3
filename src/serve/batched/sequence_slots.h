// The slots of a model's sequences: who has one, who waits, and what part of them a tenant may keep from
// others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace trireme::serve {

/// A free slot goes to the tenant that has fewest for its weight, there to the sequence that waits longest. A
/// tenant may fill all slots while nobody else wants one; its share is its weight's part among the tenants
/// that have slots or wait, and at least one slot. Only join() asks for memory. Not thread-safe.
class SequenceSlots {
  struct Waiting {
    std::string key;
    int64_t since_ns;
    uint64_t arrival;
  };
  struct Tenant {
    double weight = 1;
    size_t sequences = 0;      ///< waiting or on a slot
    size_t held = 0;           ///< slots
    size_t requests = 0;       ///< that wait, as count() is told
    std::list<Waiting> queue;  ///< for a slot
    double load() const { return static_cast<double>(held) / weight; }
  };
  using Tenants = std::map<uint32_t, Tenant>;
  using Numbers = std::set<size_t>;

 public:
  /// A sequence's place in the queue or on a slot, from join() to leave().
  class Claim {
   public:
    bool has_slot() const { return has_slot_; }
    size_t slot() const { return number_.value(); }
    uint32_t tenant() const { return tenant_->first; }
    /// Grows with the time at which slots were given.
    uint64_t order() const { return order_; }

   private:
    friend class SequenceSlots;
    Tenants::iterator tenant_;
    std::list<Waiting>::iterator place_;
    Numbers::node_type number_;  ///< room for one before there is one
    uint64_t order_ = 0;
    bool has_slot_ = false;
  };

  explicit SequenceSlots(size_t slots) : slots_(slots) {}

  /// A sequence of that key waits. Throws bad_alloc, with nothing changed.
  Claim join(std::string key, uint32_t tenant, double weight, int64_t now_ns);
  /// The key of who gets the next slot; null: none is free, or nobody waits.
  const std::string* next() const;
  /// The claim of next() has its slot: the lowest number of those in use before, else a new one.
  void give(Claim& claim);
  /// Gives the slot back, or leaves the queue. The claim is as good as none.
  void leave(Claim& claim);

  /// The tenant with most slots for its weight, if that is more than its share while another one, below its
  /// own share with one more slot, has waited for longer than `patience_ns`.
  std::optional<uint32_t> debtor(int64_t now_ns, int64_t patience_ns) const;
  /// So many more (or fewer) requests of the claim's tenant wait.
  void count(Claim& claim, std::ptrdiff_t requests) {
    claim.tenant_->second.requests += static_cast<size_t>(requests);
  }
  /// A further request may wait: `waiting` of all tenants is less than `most`, or the tenant has less than
  /// its part of that.
  bool may_wait(uint32_t tenant, double weight, size_t waiting, size_t most) const;

 private:
  double share(double weight, double all) const;
  double weights() const;

  size_t slots_;
  size_t unused_ = 0;  ///< the first slot that never was in use
  Numbers free_;       ///< slots that were
  Tenants tenants_;
  uint64_t arrivals_ = 0, given_ = 0;
};

}  // namespace trireme::serve
