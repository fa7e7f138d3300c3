// Requests for texts that wait: who goes first, by priority and by what each tenant has had.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/decode/generator.h"

namespace trireme::sched {

/// The priority of texts that run in what others leave: none of them takes part in a step while another kind
/// of text runs or waits, and theirs are the first places and pages that are taken back.
inline constexpr uint32_t kBackground = UINT32_MAX;

/// What decides when a request goes.
struct Standing {
  uint32_t priority = 0;    ///< lower goes first
  uint32_t tenant = 0;      ///< who shares the model with others
  double weight = 1;        ///< of the tenant's share
  int64_t deadline_ns = 0;  ///< it must have begun by then; 0: it waits as long as it takes
  int64_t asked_ns = 0;     ///< when it was asked; 0: when it begins
};

/// Requests in the order in which they go: the lowest priority number first; among those the tenant that has
/// had the least work for its weight, and of a tenant the oldest request. Work is counted in tokens, those of
/// an answer twice (virtual token counters; Sheng et al. 2024, "Fairness in Serving Large Language Models").
/// A tenant that had nothing waiting begins where those are that wait, or where nobody does with the one that
/// went last: nothing is saved up, and what somebody had while nobody else wanted it is not held against him.
/// A change costs the logarithm of how many wait. One owner thread.
class TokenQueue {
 public:
  struct Entry {
    int64_t number = 0;  ///< by arrival; of all requests that wait each has another
    engine::GenerateRequest request;
    Standing standing;
    bool has_begun = false;  ///< it ran before and was put back
  };

  void push(Entry entry);
  /// Who goes first; null: nobody waits. Valid until the next change.
  const Entry* first() const;
  /// Takes out who goes first.
  Entry pop();
  /// Takes a request out; false where it does not wait.
  bool remove(int64_t number);
  /// Takes out one whose deadline lies before `now_ns`, but for those that have begun; its number, or -1.
  int64_t remove_expired(int64_t now_ns);
  size_t size() const { return standings_.size(); }
  /// Requests of a priority; costs as much as there are tenants.
  size_t size_of(uint32_t priority) const;
  bool empty() const { return standings_.empty(); }

  /// A tenant's request is given so many tokens' work.
  void charge(const Standing& standing, double tokens) { had_[standing.tenant] += tokens / standing.weight; }

 private:
  using Line = std::map<int64_t, Entry>;  // of a tenant, the oldest first
  double had(uint32_t tenant) const;
  Entry take(uint32_t priority, uint32_t tenant, int64_t number);

  std::map<uint32_t, std::map<uint32_t, Line>> levels_;  // by priority and tenant; no line is empty
  std::unordered_map<int64_t, Standing> standings_;      // of those that wait
  std::set<std::pair<int64_t, int64_t>> deadlines_;      // and numbers, of those that have one
  std::map<uint32_t, double> had_;                       // tokens by weight
  std::map<uint32_t, size_t> waiting_;                   // requests of a tenant, above 0
  uint32_t last_ = 0;                                    // the tenant that went last
};

}  // namespace trireme::sched
