// Runs one stage of a pipeline: the actions of a schedule over buffers of bytes, and their transfers.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "passes/pipeline/pipeline_flow.h"
#include "tensor/device.h"

namespace trireme::runtime {
class DeviceRanks;
}

namespace trireme::engine {

/// What one micro-batch takes in one part of the model.
struct PipelineBytes {
  int64_t in = 0, out = 0;                    ///< activations that arrive, that leave
  int64_t out_gradient = 0, in_gradient = 0;  ///< gradients that arrive, that leave
  int64_t kept = 0;                           ///< from forward to the last work of the micro-batch
  int64_t late = 0;                           ///< from backward to weight gradients
  /// The layers that read what arrives and compute what leaves, for reports of what a stuck job waits for.
  std::string first_layer = "pipeline", last_layer = "pipeline";
};

/// Where one action finds and leaves its bytes; null where there are none.
struct PipelineBuffers {
  std::byte *in = nullptr, *out = nullptr, *out_gradient = nullptr, *in_gradient = nullptr;
  std::byte *kept = nullptr, *late = nullptr;
};

/// The links of a stage to its neighbours, one communicator for each direction and kind, so that transfers
/// run beside the work and beside each other.
struct PipelineLinks {
  /// Collective over `pp`. Stages are a ring if `is_ring` (several parts on a stage).
  /// `ranks`: of devices whose memory crosses; each link has a stream of its own. Null: memory of the host.
  PipelineLinks(comm::Communicator& pp, bool is_ring, tensor::Device* device = nullptr,
                const runtime::DeviceRanks* ranks = nullptr);
  ~PipelineLinks();
  /// To and from the next stage, from and to the one before; null where there is none.
  std::unique_ptr<comm::Communicator> activation_out, activation_in, gradient_out, gradient_in;
  comm::Communicator& stages;

  /// Waits until what was sent or received over the link has crossed; on the thread that did.
  void settle(const comm::Communicator* link) const;

 private:
  struct OnDevice;
  std::unique_ptr<comm::Communicator> put_on_device(std::unique_ptr<comm::Communicator> link);
  std::unique_ptr<OnDevice> on_device_;  ///< null: the host's memory crosses
};

/// How a run went, the same on every stage.
struct PipelineReport {
  double seconds = 0;           ///< from the first begin to the last end on a stage, the longest of all
  double bubble = 0;            ///< share of seconds x stages in which a stage did not work
  double predicted = 0;         ///< the same by simulation with the measured times of work
  passes::PipelineTimes times;  ///< measured means in seconds, by part of the model
};

/// One stage under one order. Work runs on the owner's thread; each link has a thread that sends or receives
/// in the schedule's order as soon as bytes are there and a buffer is free. Buffers are allocated once, as
/// many as the schedule needs (plan_pipeline_slots).
class PipelineRunner {
 public:
  /// `bytes`: by chunk of this stage; both ends of a link agree. Arguments outlive the runner.
  PipelineRunner(passes::PipelineOrder order, std::vector<PipelineBytes> bytes, PipelineLinks& links,
                 tensor::Device& device);
  ~PipelineRunner();
  PipelineRunner(const PipelineRunner&) = delete;
  PipelineRunner& operator=(const PipelineRunner&) = delete;

  using Work = std::function<void(const passes::PipelineAction&, const PipelineBuffers&)>;
  /// Does all actions of this stage in order. Collective over the stages. If work throws on one stage, the
  /// others still get their transfers, and the error is thrown on every stage at the end, with the stage's
  /// number. Throws unavailable if a rank is gone.
  PipelineReport run(const Work& work);

  const passes::PipelineOrder& order() const { return order_; }
  int64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  struct Chunk;
  struct Lane;
  struct StageReport;
  void add_lane(comm::Communicator* link, bool is_gradient, bool is_send);
  void run_lane(Lane& lane);
  bool transfer(Lane& lane, const passes::PipelineTransfer& t);
  bool is_ready(const passes::PipelineAction& action) const;
  PipelineBuffers buffers_of(const passes::PipelineAction& action) const;
  void finish(const passes::PipelineAction& action);
  void act(const passes::PipelineAction& action, const Work& work, StageReport& mine);
  PipelineReport agree(const StageReport& mine, const std::vector<double>& spent);
  bool wait(const std::function<bool()>& condition);
  void signal();
  void fail(std::exception_ptr error);

  passes::PipelineOrder order_;
  PipelineLinks& links_;
  int stage_;
  passes::PipelineWork last_ = passes::PipelineWork::forward;  ///< after which a micro-batch is through
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  int64_t buffer_bytes_ = 0;
  std::atomic<uint32_t> epoch_{0};  ///< counts events, for those who wait
  std::atomic<int> runs_{0};        ///< begun
  std::atomic<bool> stops_{false}, is_failing_{false}, has_failed_{false};
  std::exception_ptr failure_;  ///< of a link; read after has_failed_
  std::exception_ptr work_failure_;
};

}  // namespace trireme::engine
