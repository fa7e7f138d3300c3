// The shared memory of one group of local ranks: meeting place, published calls, channels, failure.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/communicator.h"

namespace trireme::comm {

/// Counts ranks in. One word holds generation (bits 16-31), failure (bit 15) and arrivals (bits 0-14), so
/// that a meeting either takes place for all ranks or for none.
class Meeting {
 public:
  explicit Meeting(int size) : size_(static_cast<uint32_t>(size)) {}
  /// Returns true when all have come; false, for every rank, if the group failed before the last came.
  bool enter();
  /// Like enter, but failure does not count: whoever entered leaves, so no rank unwinds while peers still
  /// read its buffers.
  void leave();
  void fail();

 private:
  bool meet(bool abortable);

  alignas(64) std::atomic<uint32_t> word_{0};
  uint32_t size_;
};

/// One direction between two ranks: a posted span, taken by the receiver.
struct alignas(64) Channel {
  static constexpr uint32_t kEmpty = 0, kPosted = 1, kTaken = 2, kPhase = 3, kFailed = 4;
  std::atomic<uint32_t> word{kEmpty};
  ConstBytes data;
  std::string_view source;
};

class LocalGroup;

/// What a rank shows the others before a collective.
struct alignas(64) Published {
  Call call;
  int64_t sequence = 0;
  int color = 0, key = 0;
  std::shared_ptr<LocalGroup> group;  // split: what the first member of a colour made
};

/// Failure and the list of groups of one world.
class LocalFaults {
 public:
  int64_t deadline_ns = 0;  ///< of the world, set before ranks start

  /// The first failure counts; it reaches every group.
  void fail(base::ErrorCode code, const std::string& text);
  [[noreturn]] void throw_failure() const;
  void add(const std::shared_ptr<LocalGroup>& group);
  std::vector<std::shared_ptr<LocalGroup>> groups() const;

 private:
  mutable std::mutex mutex_;
  std::optional<base::Error> failure_;
  std::vector<std::weak_ptr<LocalGroup>> groups_;
};

class LocalGroup {
 public:
  LocalGroup(LocalFaults& faults, std::vector<int> world_ranks);

  int size() const { return static_cast<int>(world_ranks.size()); }
  Channel& channel(int from, int to) { return channels[static_cast<size_t>(from * size() + to)]; }
  void fail();

  LocalFaults& faults;
  const std::vector<int> world_ranks;
  Meeting meeting;
  std::vector<Published> published;       // [size]
  std::vector<Channel> channels;          // [size, size]
  std::vector<FlightRecorder> recorders;  // [size]
};

/// A rank in a group.
class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank);

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  int64_t deadline_ns() const override { return group_->faults.deadline_ns; }
  const FlightRecorder& flights() const override { return recorder(); }
  std::unique_ptr<Communicator> split(int color, int key) override;
  /// A barrier that disagrees with every other collective: no rank waits for one that is done.
  void finish() { execute({.what = Collective::finish}); }

 protected:
  void execute(const Call& call) override;

 private:
  FlightRecorder& recorder() const { return group_->recorders[static_cast<size_t>(rank_)]; }
  const Published& peer(int r) const { return group_->published[static_cast<size_t>(r)]; }
  void enqueue(const Call& call);
  void enter();
  void leave();
  void require_same() const;
  [[noreturn]] void disagree(const std::string& text) const;
  void perform(const Call& call);
  void reduce(const Call& call, size_t begin, size_t end);
  void gather(const Call& call);
  void gather_uneven(const Call& call);
  void swap_in_place(const Call& call);
  void exchange(const Call& call);
  void post(const Call& call);
  void take(const Call& call);
  /// Waits until the receiver has copied what was posted; false if the group failed before it began to.
  bool wait_taken(const Call& call);

  std::shared_ptr<LocalGroup> group_;
  int rank_;
  base::SystemClock clock_;
  std::vector<const std::byte*> sources_;  // [size], so that reductions do not allocate
};

}  // namespace trireme::comm
