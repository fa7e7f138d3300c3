// Which instances may run now: a run needs resources that all models share, and those that ran least for
// their weight go first.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace trireme::sched {

/// So much of a resource is taken while an instance runs. All models run on one device here, so a global
/// resource and one of the device differ only in that a name cannot be both.
struct RateNeed {
  std::string name;
  bool is_global = false;
  int64_t count = 1;
};

/// What one instance needs, and its weight: one of priority 2 runs half as often as one of priority 1.
struct RateClaim {
  std::vector<RateNeed> needs = {};
  uint32_t priority = 1;
};

/// A total that the server was told: `name:count`, `name:count:0` or `name:count:global`.
struct RateTotal {
  std::string name;
  int64_t count = 0;
  std::optional<bool> is_global = {};  ///< absent: either
  /// Throws invalid_argument for text of another form.
  static RateTotal parse(const std::string& text);
};

/// Grants runs in the order of runs so far times priority; an instance that was idle begins where the others
/// are. Nobody overtakes one that waits for a resource which it needs itself, so none starves;
/// those that share none with it go on. Any thread.
class RateLimiter {
 public:
  /// Of a resource without a total there is as much as the most that one instance needs.
  explicit RateLimiter(const std::vector<RateTotal>& totals = {});
  RateLimiter(const RateLimiter&) = delete;
  RateLimiter& operator=(const RateLimiter&) = delete;

  /// Adds an instance and gives its number. Throws invalid_argument for a need above the total, or a name
  /// that is a global resource elsewhere. `on_grant` must be quick, must not call the limiter, and comes
  /// after an ask() that gave false.
  uint64_t add(RateClaim claim, std::function<void()> on_grant);
  /// Takes it out with whatever it holds.
  void remove(uint64_t instance);

  /// True if the instance may run now, else it waits for its on_grant.
  bool ask(uint64_t instance);
  /// After a run, or with `has_run` false to give up waiting or unused resources. With `asks_again` it joins
  /// those that wait before the next one is chosen, so that weights hold also between two that always have
  /// work; true: it may run at once.
  bool give_back(uint64_t instance, bool has_run, bool asks_again = false);

 private:
  struct Resource {
    std::optional<int64_t> told;      ///< the total that the server was told
    std::optional<bool> told_global;  ///< likewise, whether it is global
    std::optional<bool> is_global;    ///< as who needs it has it; absent: nobody does, nor was it told
    int64_t used = 0;
  };
  struct Instance {
    RateClaim claim;
    std::function<void()> on_grant;
    enum class State : uint8_t { idle, waits, holds } state = State::idle;
    uint64_t share = 0;  ///< runs times priority
    uint64_t since = 0;  ///< order of asking, among equal shares
  };
  int64_t total(const std::string& name) const;
  bool is_free(const Instance& instance) const;
  bool is_needed(const std::string& name) const;
  void take(Instance& instance, int sign);
  bool join_waiting(Instance& instance);
  void grant_waiting();

  std::mutex mutex_;
  std::map<std::string, Resource> resources_;
  std::map<uint64_t, Instance> instances_;
  uint64_t last_number_ = 0, asks_ = 0;
  uint64_t now_ = 0;  ///< the share with which the last one began: time as weights measure it
};

}  // namespace trireme::sched
