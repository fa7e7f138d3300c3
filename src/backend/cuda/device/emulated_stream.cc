// Streams of the emulated device: work runs at once, on a thread of the stream, or when somebody waits for
// it.
#include "backend/cuda/device/emulated_stream.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/device/emulated_queue.h"
#include "base/error.h"

namespace trireme::cuda {

namespace {

class EmulatedEvent final : public tensor::Event {
 public:
  int64_t ns_since(const tensor::Event& earlier) const override {
    return point->ns.load() - static_cast<const EmulatedEvent&>(earlier).point->ns.load();
  }
  std::shared_ptr<EmulatedPoint> point = std::make_shared<EmulatedPoint>();
};

}  // namespace

class EmulatedRecording final : public tensor::Recording {
 public:
  explicit EmulatedRecording(std::shared_ptr<const EmulatedCapture> capture) : capture_(std::move(capture)) {}
  void replay(tensor::Stream& stream) override {
    auto& origin = static_cast<EmulatedStream&>(stream);
    for (const EmulatedCapture::Entry& e : capture_->entries) {
      EmulatedStream& on = e.on == capture_->origin ? origin : *e.on;
      switch (e.item.kind) {
        case EmulatedItem::Kind::work: on.replay(e.item.own); break;
        case EmulatedItem::Kind::mark: on.set_point(e.item.point); break;
        case EmulatedItem::Kind::wait: on.wait_point(e.item.point); break;
      }
    }
  }

 private:
  std::shared_ptr<const EmulatedCapture> capture_;
};

EmulatedStream::EmulatedStream(const Parts& parts, base::ThreadPool& pool)
    : memory_(parts.memory), schedule_(parts.schedule) {
  // Small, so that the loops over the blocks of a grid are exercised.
  multiprocessors_ = 2;
  const bool is_compute = parts.role == StreamRole::compute;
  is_direct_ = schedule_->is_direct() && is_compute;
  queue_of_work_ = std::make_shared<EmulatedQueue>(memory_, pool, schedule_->is_direct() && !is_compute);
  schedule_->add(queue_of_work_);
}

EmulatedStream::~EmulatedStream() {
  if (is_open_) memory_->leave();
}

HostGrid& EmulatedStream::grid() { return queue_of_work_->grid(); }

void EmulatedStream::reach() {
  ++launches_;
  if (!std::exchange(is_open_, true)) memory_->reach();
}

void EmulatedStream::hold(EmulatedWork work) {
  ++launches_;
  EmulatedItem item{.own = std::move(work)};
  if (capture_ != nullptr) return capture_->entries.push_back({this, std::move(item)}), void();
  queue_of_work_->push(std::move(item));
}

void EmulatedStream::replay(const EmulatedWork& work) {
  if (!is_direct_) return queue_of_work_->push({.work = &work});
  reach();
  --launches_;  // already counted when it was captured
  work(grid());
}

void EmulatedStream::synchronize() {
  base::check(capture_ == nullptr, "a recording stream is waited for");
  if (!is_direct_) schedule_->finish(*queue_of_work_);
  if (std::exchange(is_open_, false)) memory_->leave();
  queue_of_work_->throw_failure();
}

bool EmulatedStream::is_done() {
  if (!is_direct_ && !queue_of_work_->is_done()) {
    if (queue_of_work_->has_thread()) return false;
    schedule_->finish(*queue_of_work_);  // no other thread would run it
  }
  return true;
}

void EmulatedStream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return;
  launch([to, from, bytes](HostGrid&) { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  --launches_;  // neither a copy nor a callback is a kernel
}

void EmulatedStream::call(std::function<void()> work) {
  launch([work = std::move(work)](HostGrid&) { work(); });
  --launches_;
}

void EmulatedStream::begin_recording() {
  base::check(capture_ == nullptr, "a recording begins in a recording");
  capture_ = std::make_shared<EmulatedCapture>();
  capture_->origin = this;
}

std::unique_ptr<tensor::Recording> EmulatedStream::end_recording() {
  base::check(capture_ != nullptr && capture_->origin == this, "no recording to end");
  const std::shared_ptr<EmulatedCapture> made = std::exchange(capture_, nullptr);
  for (EmulatedStream* stream : made->joined) stream->capture_ = nullptr;
  made->require_joined();
  return std::make_unique<EmulatedRecording>(made);
}

std::unique_ptr<tensor::Event> EmulatedStream::make_event() { return std::make_unique<EmulatedEvent>(); }

std::unique_ptr<tensor::Event> EmulatedStream::record_event() {
  auto event = std::make_unique<EmulatedEvent>();
  set(*event);
  return event;
}

void EmulatedStream::set(tensor::Event& event) {
  const auto& point = static_cast<EmulatedEvent&>(event).point;
  point->capture = capture_;
  if (capture_ == nullptr) return set_point(point);
  capture_->entries.push_back({this, {.kind = EmulatedItem::Kind::mark, .point = point}});
}

void EmulatedStream::wait(const tensor::Event& event) {
  const auto& point = static_cast<const EmulatedEvent&>(event).point;
  const std::shared_ptr<EmulatedCapture> of_event = point->capture.lock();
  if (of_event != nullptr && capture_ == nullptr && of_event->origin->capture_ == of_event) {
    capture_ = of_event;
    of_event->joined.push_back(this);
  }
  if (capture_ == nullptr) return wait_point(point);
  base::check(of_event == capture_, "a recording waits for an event outside of it");
  capture_->entries.push_back({this, {.kind = EmulatedItem::Kind::wait, .point = point}});
}

void EmulatedStream::set_point(const std::shared_ptr<EmulatedPoint>& point) {
  point->on = queue_of_work_;
  const uint64_t count = ++point->count;
  if (is_direct_) return point->pass(count);
  queue_of_work_->push({.kind = EmulatedItem::Kind::mark, .point = point, .count = count});
}

void EmulatedStream::wait_point(const std::shared_ptr<EmulatedPoint>& point) {
  if (point->has_passed(point->count)) return;
  if (is_direct_) return point->await(point->count);
  queue_of_work_->push({.kind = EmulatedItem::Kind::wait, .point = point, .count = point->count});
}

}  // namespace trireme::cuda
