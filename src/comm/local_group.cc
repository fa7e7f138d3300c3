// How local ranks meet, fail together and pass buffers to one another.
#include "comm/local_group.h"

#include <cstring>
#include <thread>

#include "comm/agreement.h"

namespace trireme::comm {
namespace {

// Spinning lasts some 10 us, enough for a peer that is about to end a kernel. Then a rank yields its core to
// a peer that may need it (if ranks outnumber cores), and only then sleeps; waking up costs tens of us.
constexpr int kSpinsOnWord = 256;
constexpr int kYields = 64;

constexpr uint32_t kFailedBit = 1u << 15;
constexpr uint32_t kArrivedMask = kFailedBit - 1;
constexpr uint32_t kGenerationShift = 16;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Waits until the word differs from `old` and returns its value.
uint32_t wait_change(const std::atomic<uint32_t>& word, uint32_t old) {
  for (int i = 0; i < kSpinsOnWord; ++i) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (now != old) return now;
    pause_cpu();
  }
  for (int i = 0; i < kYields; ++i) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (now != old) return now;
    std::this_thread::yield();
  }
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

}  // namespace

bool Meeting::meet(bool abortable) {
  uint32_t now = word_.load(std::memory_order_acquire);
  const uint32_t generation = now >> kGenerationShift;
  for (;;) {
    if (abortable && (now & kFailedBit) != 0) return false;
    const bool last = (now & kArrivedMask) + 1 == size_;
    const uint32_t next = last ? ((generation + 1) << kGenerationShift) | (now & kFailedBit) : now + 1;
    if (!word_.compare_exchange_weak(now, next, std::memory_order_acq_rel)) continue;
    if (last) {
      word_.notify_all();
      return true;
    }
    now = next;
    break;
  }
  for (;;) {
    now = wait_change(word_, now);
    if (now >> kGenerationShift != generation) return true;
    if (abortable && (now & kFailedBit) != 0) return false;
  }
}

bool Meeting::enter() { return meet(true); }

void Meeting::leave() { meet(false); }

void Meeting::fail() {
  word_.fetch_or(kFailedBit, std::memory_order_acq_rel);
  word_.notify_all();
}

void LocalFaults::fail(base::ErrorCode code, const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_.emplace(code, text);
  }
  for (const auto& group : groups()) group->fail();
}

void LocalFaults::throw_failure() const {
  const std::lock_guard lock(mutex_);
  base::check(failure_.has_value(), "a group failed without a reason");
  throw base::Error(*failure_);
}

void LocalFaults::add(const std::shared_ptr<LocalGroup>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& g) { return g.expired(); });
  groups_.push_back(group);
  if (failure_) group->fail();
}

std::vector<std::shared_ptr<LocalGroup>> LocalFaults::groups() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<LocalGroup>> out;
  for (const auto& g : groups_) {
    if (auto group = g.lock()) out.push_back(std::move(group));
  }
  return out;
}

LocalGroup::LocalGroup(LocalFaults& world_faults, std::vector<int> ranks)
    : faults(world_faults),
      world_ranks(std::move(ranks)),
      meeting(size()),
      published(world_ranks.size()),
      channels(world_ranks.size() * world_ranks.size()),
      recorders(world_ranks.size()) {}

void LocalGroup::fail() {
  meeting.fail();
  for (Channel& c : channels) {
    c.word.fetch_or(Channel::kFailed, std::memory_order_acq_rel);
    c.word.notify_all();
  }
}

void LocalCommunicator::exchange(const Call& call) {
  if (call.to >= 0) post(call);
  try {
    if (call.from >= 0) take(call);
  } catch (...) {
    if (call.to >= 0) wait_taken(call);  // who sends does not unwind while its peer copies
    throw;
  }
  if (call.to >= 0 && !wait_taken(call)) group_->faults.throw_failure();
}

void LocalCommunicator::post(const Call& call) {
  Channel& c = group_->channel(rank_, call.to);
  c.data = call.in;  // the receiver reads these only after the word says posted
  c.source = call.source;
  uint32_t empty = Channel::kEmpty;
  if (!c.word.compare_exchange_strong(empty, Channel::kPosted, std::memory_order_acq_rel)) {
    group_->faults.throw_failure();
  }
  c.word.notify_all();
}

void LocalCommunicator::take(const Call& call) {
  Channel& c = group_->channel(call.from, rank_);
  uint32_t now = c.word.load(std::memory_order_acquire);
  while (now != Channel::kPosted) {
    if ((now & Channel::kFailed) != 0) group_->faults.throw_failure();
    now = wait_change(c.word, now);
  }
  if (c.data.size() != call.out.size()) {
    const std::vector<int>& names = group_->world_ranks;
    const std::string text = disagreement({names[static_cast<size_t>(call.from)], c.data.size(), c.source},
                                          {names[static_cast<size_t>(rank_)], call.out.size(), call.source});
    group_->faults.fail(base::ErrorCode::invalid_argument, text);
    group_->faults.throw_failure();
  }
  // Marked as taken before it is read: from here on the sender waits for the copy, even if a rank fails.
  if (!c.word.compare_exchange_strong(now, Channel::kTaken, std::memory_order_acq_rel)) {
    group_->faults.throw_failure();
  }
  recorder().start(clock_.now_ns());
  if (!call.out.empty()) std::memcpy(call.out.data(), c.data.data(), call.out.size());
  c.word.fetch_and(~Channel::kPhase, std::memory_order_acq_rel);
  c.word.notify_all();
}

bool LocalCommunicator::wait_taken(const Call& call) {
  Channel& c = group_->channel(rank_, call.to);
  uint32_t now = c.word.load(std::memory_order_acquire);
  while ((now & Channel::kPhase) != Channel::kEmpty) {
    const bool withdraw = now == (Channel::kPosted | Channel::kFailed);
    if (withdraw && c.word.compare_exchange_strong(now, Channel::kFailed, std::memory_order_acq_rel)) {
      return false;
    }
    now = wait_change(c.word, now);
  }
  return true;
}

}  // namespace trireme::comm
