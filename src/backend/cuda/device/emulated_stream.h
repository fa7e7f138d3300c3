// The stand-in's streams: queues whose work runs at once, on a thread of theirs, or in an order that a test
// chooses when somebody waits.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/host_grid.h"

namespace trireme::cuda {

/// All memory of one stand-in. Locked, it cannot be touched.
class EmulatedMemory;
/// The streams of one opened device, and in which order what they hold back runs.
class EmulatedSchedule;
/// What was launched on one stream and has not run.
class EmulatedQueue;
/// Launches on several streams with the events between them.
struct EmulatedCapture;
/// How far an event has come.
struct EmulatedPoint;

using EmulatedWork = std::function<void(HostGrid&)>;

std::shared_ptr<EmulatedSchedule> make_emulated_schedule(EmulatedPlan plan);

class EmulatedStream final : public CudaStream {
 public:
  struct Parts {
    std::shared_ptr<EmulatedMemory> memory;
    std::shared_ptr<EmulatedSchedule> schedule;
    StreamRole role = StreamRole::compute;
  };
  /// Blocks of a launch are shared out over the pool, which outlives the stream.
  EmulatedStream(const Parts& parts, base::ThreadPool& pool);
  ~EmulatedStream() override;

  /// Device work, work(grid). On direct compute streams the memory is within reach from the first after a
  /// synchronize() until the next.
  template <class Work>
  void launch(const Work& work) {
    if (capture_ != nullptr || !is_direct_) return hold(EmulatedWork(work));
    reach();
    work(grid());
  }

  /// Throws what work that was held back threw; what followed it was passed over.
  void synchronize() override;
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override;
  void begin_recording() override;
  std::unique_ptr<tensor::Recording> end_recording() override;
  std::unique_ptr<tensor::Event> record_event() override;
  void wait(const tensor::Event& event) override;
  std::unique_ptr<tensor::Event> make_event() override;
  void set(tensor::Event& event) override;
  bool is_done() override;
  bool has_calls() const override { return true; }
  void call(std::function<void()> work) override;
  int64_t launches() const override { return launches_; }

 private:
  friend class EmulatedRecording;
  void reach();
  void hold(EmulatedWork work);
  void replay(const EmulatedWork& work);
  void set_point(const std::shared_ptr<EmulatedPoint>& point);
  void wait_point(const std::shared_ptr<EmulatedPoint>& point);
  HostGrid& grid();

  std::shared_ptr<EmulatedMemory> memory_;
  std::shared_ptr<EmulatedSchedule> schedule_;
  std::shared_ptr<EmulatedQueue> queue_of_work_;
  std::shared_ptr<EmulatedCapture> capture_;  ///< null outside of recordings
  bool is_direct_ = true, is_open_ = false;
  int64_t launches_ = 0;
};

}  // namespace trireme::cuda
