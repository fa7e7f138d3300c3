// Queues of work of the emulated device's streams, and the schedule that decides when each item runs.
#include "backend/cuda/device/emulated_queue.h"

#include <algorithm>
#include <chrono>

#include "base/rng.h"

namespace trireme::cuda {

void EmulatedPoint::pass(uint64_t number) {
  ns.store(std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
               .count());
  for (uint64_t now = passed.load(); now < number && !passed.compare_exchange_weak(now, number);) {
  }
  passed.notify_all();
}

void EmulatedPoint::await(uint64_t number) const {
  for (uint64_t now = passed.load(std::memory_order_acquire); now < number;
       now = passed.load(std::memory_order_acquire)) {
    passed.wait(now, std::memory_order_acquire);
  }
}

void EmulatedCapture::require_joined() const {
  for (EmulatedStream* stream : joined) {
    bool is_joined = true;
    std::vector<const EmulatedPoint*> marks;  // recorded since the stream's last work
    for (const Entry& e : entries) {
      if (e.on == stream && e.item.kind == EmulatedItem::Kind::work) is_joined = false, marks.clear();
      if (e.on == stream && e.item.kind == EmulatedItem::Kind::mark) marks.push_back(e.item.point.get());
      const bool is_wait = e.on == origin && e.item.kind == EmulatedItem::Kind::wait;
      if (is_wait && std::find(marks.begin(), marks.end(), e.item.point.get()) != marks.end())
        is_joined = true;
    }
    base::check(is_joined, "a recording ends before it waits for a stream that takes part");
  }
}

EmulatedQueue::EmulatedQueue(std::shared_ptr<EmulatedMemory> memory, base::ThreadPool& pool, bool has_thread)
    : memory_(std::move(memory)), grid_(&pool) {
  if (has_thread) thread_ = std::thread([this] { work(); });
}

EmulatedQueue::~EmulatedQueue() {
  if (!thread_.joinable()) return;
  stops_.store(true);
  posted_.fetch_add(1);  // wakes the thread without an item
  posted_.notify_all();
  thread_.join();
}

void EmulatedQueue::push(EmulatedItem item) {
  owner_.store(std::this_thread::get_id());
  state_.with([&](State& state) { state.items.push_back(std::move(item)); });
  posted_.fetch_add(1, std::memory_order_acq_rel);
  posted_.notify_all();
}

std::shared_ptr<EmulatedPoint> EmulatedQueue::awaited() const {
  return state_.with([](const State& state) -> std::shared_ptr<EmulatedPoint> {
    if (state.items.empty() || state.items.front().kind != EmulatedItem::Kind::wait) return nullptr;
    const EmulatedItem& first = state.items.front();
    return first.point->has_passed(first.count) ? nullptr : first.point;
  });
}

bool EmulatedQueue::run_first() {
  if (busy_.test_and_set(std::memory_order_acquire)) return false;
  EmulatedItem item;
  const bool is_there = state_.with([&](State& state) {
    if (state.items.empty()) return false;
    EmulatedItem& first = state.items.front();
    if (first.kind == EmulatedItem::Kind::wait && !first.point->has_passed(first.count)) return false;
    item = std::move(first);
    state.items.pop_front();
    return true;
  });
  if (is_there) {
    run(item);
    done_.fetch_add(1, std::memory_order_acq_rel);
    done_.notify_all();
  }
  busy_.clear(std::memory_order_release);
  return is_there;
}

void EmulatedQueue::run(const EmulatedItem& item) {
  if (item.kind == EmulatedItem::Kind::mark) return item.point->pass(item.count);
  if (item.kind == EmulatedItem::Kind::wait) return;
  // Work after a failure is skipped, because its operands were not computed.
  if (state_.with([](const State& state) { return state.failure != nullptr; })) return;
  memory_->reach();
  try {
    (item.own ? item.own : *item.work)(grid_);
  } catch (...) {
    state_.with([](State& state) { state.failure = std::current_exception(); });
  }
  memory_->leave();
}

void EmulatedQueue::work() {
  for (;;) {
    for (uint64_t posted; (posted = posted_.load(std::memory_order_acquire)) == done_.load();)
      posted_.wait(posted, std::memory_order_acquire);
    const auto [is_empty, point, count] = state_.with([](const State& state) {
      if (state.items.empty()) return std::tuple(true, std::shared_ptr<EmulatedPoint>(), uint64_t{0});
      return std::tuple(false, state.items.front().point, state.items.front().count);
    });
    if (is_empty) {
      if (stops_.load()) return;
      std::this_thread::yield();  // the item is about to appear
      continue;
    }
    const std::shared_ptr<EmulatedPoint> awaited_point = awaited();
    if (awaited_point != nullptr) point->await(count);
    run_first();
  }
}

void EmulatedQueue::await() const {
  for (uint64_t done; (done = done_.load(std::memory_order_acquire)) < posted_.load();)
    done_.wait(done, std::memory_order_acquire);
}

void EmulatedQueue::throw_failure() {
  const std::exception_ptr failure =
      state_.with([](State& state) { return std::exchange(state.failure, nullptr); });
  if (failure) std::rethrow_exception(failure);
}

std::shared_ptr<EmulatedSchedule> make_emulated_schedule(EmulatedPlan plan) {
  return std::make_shared<EmulatedSchedule>(plan);
}

void EmulatedSchedule::add(const std::shared_ptr<EmulatedQueue>& queue) {
  queues_.with([&](auto& list) {
    std::erase_if(list, [](const auto& q) { return q.expired(); });
    list.push_back(queue);
  });
}

/// Queues of this thread only: kernels of others may share thread pools that are in use.
std::vector<std::shared_ptr<EmulatedQueue>> EmulatedSchedule::others_of(const EmulatedQueue& queue) {
  return queues_.with([&](auto& list) {
    std::vector<std::shared_ptr<EmulatedQueue>> others;
    for (const auto& weak : list) {
      auto other = weak.lock();
      if (other != nullptr && other.get() != &queue && other->is_of_this_thread())
        others.push_back(std::move(other));
    }
    return others;
  });
}

/// Follows the chain of events that the queue waits for to an item that can run.
bool EmulatedSchedule::run_needed(EmulatedQueue& queue) {
  const std::shared_ptr<EmulatedPoint> point = queue.awaited();
  if (point == nullptr) return queue.run_first();
  const std::shared_ptr<EmulatedQueue> other = point->on.lock();
  return other != nullptr && run_needed(*other);
}

bool EmulatedSchedule::run_some(EmulatedQueue& queue) {
  if (plan_.order == EmulatedOrder::late) return run_needed(queue);
  std::vector<std::shared_ptr<EmulatedQueue>> others = others_of(queue);
  if (plan_.order == EmulatedOrder::shuffled) {
    const uint64_t draw = draws_.fetch_add(1);
    const uint64_t pick = base::philox_block(plan_.seed, 0, draw)[0] % (others.size() + 1);
    return pick < others.size() ? others[pick]->run_first() : run_needed(queue);
  }
  const auto has_run = [](const auto& other) { return other->run_first(); };
  return std::any_of(others.begin(), others.end(), has_run) || run_needed(queue);
}

void EmulatedSchedule::finish(EmulatedQueue& queue) {
  if (queue.has_thread()) return queue.await();
  while (!queue.is_done()) {
    if (!run_some(queue)) std::this_thread::yield();
  }
}

}  // namespace trireme::cuda
