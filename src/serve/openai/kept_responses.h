// Responses that the server keeps for a while, so that a conversation goes on from one of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/clock.h"
#include "base/memory/memory_budget.h"
#include "base/text/json.h"

namespace trireme::serve {

/// A response and what it answered.
struct KeptResponse {
  std::string response;  ///< the object, as JSON
  std::string input;     ///< all items that it answered, of earlier responses too: an array, as JSON
};

/// In memory, bounded in number, bytes and time; what is kept also counts in the server's account of memory,
/// and is left out where that has no room. Any thread.
class KeptResponses {
 public:
  struct Limits {
    int64_t responses = 0, bytes = 0;  ///< at a time; no responses: none are kept
    int64_t ns = 0;                    ///< how long each
  };
  /// The clock outlives it.
  KeptResponses(const Limits& limits, const base::Clock& clock) : limits_(limits), clock_(clock) {}

  bool is_on() const { return limits_.responses > 0; }
  /// What does not fit at all is not kept. An id that is there already stays as it is.
  void add(const std::string& id, const std::string& tenant, KeptResponse kept);
  /// Throws not_found, also for one of somebody else.
  std::shared_ptr<const KeptResponse> find(std::string_view id, std::string_view tenant);
  void remove(std::string_view id, std::string_view tenant);
  /// The items that a response was part of, and what it said: an array.
  base::Json conversation(std::string_view id, std::string_view tenant);

  int64_t bytes() const;
  size_t size() const;

 private:
  struct Entry {
    std::string tenant;
    std::shared_ptr<const KeptResponse> kept;
    base::MemoryLease room;
    uint64_t number = 0;  ///< by age
    int64_t until_ns = 0;
  };
  struct Tenant {
    int64_t bytes = 0;
    std::map<uint64_t, std::string> ids;  ///< by number
  };
  using Entries = std::unordered_map<std::string, Entry>;
  Entries::iterator at(std::string_view id, std::string_view tenant);
  void erase(Entries::iterator entry);
  void drop_old();
  void make_room(int64_t bytes);

  const Limits limits_;
  const base::Clock& clock_;
  mutable std::mutex mutex_;  // of what follows
  Entries entries_;
  std::map<std::string, Tenant> tenants_;   ///< of those that have some
  std::map<uint64_t, std::string> by_age_;  ///< ids
  int64_t bytes_ = 0;
  uint64_t next_ = 0;
};

}  // namespace trireme::serve
