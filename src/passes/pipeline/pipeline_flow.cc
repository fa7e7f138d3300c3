// The transfers between pipeline stages under a schedule, and the buffers that they need.
#include "passes/pipeline/pipeline_flow.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::passes {
namespace {

using enum PipelineWork;
using Slots = std::vector<std::vector<PipelineSlots>>;

bool is_backward(PipelineWork work) { return work == backward || work == input_gradient; }

int part_of(const PipelineOrder& order, int stage, int chunk) { return chunk * order.shape.stages + stage; }

/// The work after which nothing of a micro-batch is read any more.
PipelineWork last_work(const PipelineOrder& order) {
  PipelineWork last = forward;
  for (const PipelineAction& a : order.of_stage[0]) last = std::max(last, a.work);
  return last;
}

/// The largest number of micro-batches of a chunk between `first` (counted at its begin) and `last` (at its
/// end).
int most_between(const std::vector<PipelineAction>& actions, int chunk, PipelineWork first,
                 PipelineWork last) {
  int now = 0, most = 0;
  for (const PipelineAction& a : actions) {
    if (a.chunk != chunk) continue;
    if (a.work == first) most = std::max(most, ++now);
    if (a.work == last) --now;
  }
  return most;
}

/// Tests whether an order completes with given buffers. A greedy simulation suffices: an event that has
/// become possible stays possible, so the order of events does not matter.
class Flow {
 public:
  Flow(const PipelineOrder& order, const Slots& slots) : order_(order), slots_(slots) {
    const auto parts = static_cast<size_t>(order.shape.parts());
    done_.resize(parts);
    for (int r = 0; r < order.shape.stages; ++r) {
      activations_.push_back(activation_transfers(order, r));
      gradients_.push_back(gradient_transfers(order, r));
    }
    last_ = last_work(order);
  }

  bool runs() {
    const auto stages = static_cast<size_t>(order_.shape.stages);
    std::vector<size_t> next(stages, 0), sent(stages, 0), returned(stages, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < stages; ++r) {
        const int stage = static_cast<int>(r);
        while (next[r] < order_.of_stage[r].size() && act(order_.of_stage[r][next[r]], stage))
          ++next[r], moved = true;
        while (sent[r] < activations_[r].size() && pass(activations_[r][sent[r]], stage))
          ++sent[r], moved = true;
        while (returned[r] < gradients_[r].size() && give_back(gradients_[r][returned[r]], stage))
          ++returned[r], moved = true;
      }
    }
    for (size_t r = 0; r < stages; ++r) {
      if (next[r] < order_.of_stage[r].size()) return false;
    }
    return true;
  }

 private:
  /// The number of micro-batches of a part that have passed each event.
  struct Done {
    int forward = 0, backward = 0, all = 0;
    int arrived = 0, sent = 0, gradient_arrived = 0, gradient_sent = 0;
  };
  Done& done(int part) { return done_[static_cast<size_t>(part)]; }
  const PipelineSlots& slots(int part) const {
    const auto stages = static_cast<size_t>(order_.shape.stages);
    return slots_[static_cast<size_t>(part) % stages][static_cast<size_t>(part) / stages];
  }

  bool act(const PipelineAction& a, int stage) {
    const int part = part_of(order_, stage, a.chunk), last = order_.shape.parts() - 1, i = a.micro_batch;
    Done& d = done(part);
    if (a.work == forward) {
      // The input has arrived, and the previous content of the result's buffer has been sent.
      if (part > 0 && d.arrived <= i) return false;
      if (part < last && d.sent <= i - slots(part).out) return false;
      d.forward = i + 1;
    } else if (is_backward(a.work)) {
      if (d.forward <= i || (part < last && d.gradient_arrived <= i)) return false;
      if (part > 0 && d.gradient_sent <= i - slots(part).in_gradient) return false;
      d.backward = i + 1;
    } else if (d.backward <= i) {
      return false;
    }
    if (a.work == last_) d.all = i + 1;
    return true;
  }
  bool pass(const PipelineTransfer& t, int stage) {
    const int part = part_of(order_, stage, t.chunk);
    if (done(part).forward <= t.micro_batch) return false;
    // The receiver's buffer is free once the micro-batch that used it before has finished.
    if (done(part + 1).all <= t.micro_batch - slots(part + 1).in) return false;
    done(part).sent = done(part + 1).arrived = t.micro_batch + 1;
    return true;
  }
  bool give_back(const PipelineTransfer& t, int stage) {
    const int part = part_of(order_, stage, t.chunk);
    if (done(part).backward <= t.micro_batch) return false;
    if (done(part - 1).all <= t.micro_batch - slots(part - 1).out_gradient) return false;
    done(part).gradient_sent = done(part - 1).gradient_arrived = t.micro_batch + 1;
    return true;
  }

  const PipelineOrder& order_;
  const Slots& slots_;
  std::vector<Done> done_;
  std::vector<std::vector<PipelineTransfer>> activations_, gradients_;  ///< by sending stage
  PipelineWork last_ = forward;
};

}  // namespace

std::vector<PipelineTransfer> activation_transfers(const PipelineOrder& order, int stage) {
  std::vector<PipelineTransfer> out;
  for (const PipelineAction& a : order.of_stage[static_cast<size_t>(stage)]) {
    if (a.work == forward && part_of(order, stage, a.chunk) + 1 < order.shape.parts())
      out.push_back({a.micro_batch, a.chunk});
  }
  return out;
}

std::vector<PipelineTransfer> gradient_transfers(const PipelineOrder& order, int stage) {
  std::vector<PipelineTransfer> out;
  for (const PipelineAction& a : order.of_stage[static_cast<size_t>(stage)]) {
    if (is_backward(a.work) && part_of(order, stage, a.chunk) > 0) out.push_back({a.micro_batch, a.chunk});
  }
  return out;
}

Slots plan_pipeline_slots(const PipelineOrder& order) {
  simulate(order);  // reports stages that wait for each other if the order itself cannot run
  const int most = order.shape.micro_batches;
  const PipelineWork last = last_work(order);
  Slots slots(order.of_stage.size());
  for (size_t r = 0; r < slots.size(); ++r) {
    for (int c = 0; c < order.shape.chunks; ++c) {
      PipelineSlots s;
      if (last != forward) s.kept = peak_in_flight(order, static_cast<int>(r), c);
      if (last == weight_gradient) s.late = most_between(order.of_stage[r], c, input_gradient, last);
      s.in = std::min(most, s.kept + 1);
      s.out_gradient = std::min(most, s.late + 1);
      slots[r].push_back(s);
    }
  }
  // Starts with two sending buffers, one written while the other is sent; some orders need more.
  for (int leaving = 2;; ++leaving) {
    for (auto& stage : slots) {
      for (PipelineSlots& s : stage) s.out = s.in_gradient = std::min(most, leaving);
    }
    if (Flow(order, slots).runs()) return slots;
    base::check(leaving < most, "a pipeline order needs more buffers than micro-batches");
  }
}

}  // namespace trireme::passes
