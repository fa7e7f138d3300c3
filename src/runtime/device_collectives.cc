// Runs the collectives of a program on a device.
#include "runtime/device_collectives.h"

#include <exception>
#include <utility>

namespace trireme::runtime {

DeviceCollectives::DeviceCollectives(const compile::Program& program, const DeviceBinding& on)
    : program_(program), on_(on), met_(program.steps.size()) {
  for (size_t s = 0; s < program.steps.size(); ++s) {
    if (program.steps[s].axes.empty()) continue;
    if (ready_ == nullptr) ready_ = stream().make_event();
    met_[s] = stream().make_event();
  }
}

void DeviceCollectives::begin() {
  if (has_any()) on_.ranks->begin(program_.name);
}

void DeviceCollectives::finish(tensor::Stream& compute) {
  if (!has_any()) return compute.synchronize();
  std::exception_ptr failure;
  try {
    compute.synchronize();
  } catch (const base::Error&) {
    failure = std::current_exception();
  }
  stream().synchronize();
  on_.ranks->end();
  if (failure) std::rethrow_exception(failure);
}

void DeviceCollectives::run(size_t s, cuda::CudaStream& compute, const ir::RunArgs& args,
                            DeviceTimeline* timeline) {
  cuda::CudaStream& aside = stream();
  compute.set(*ready_);
  aside.wait(*ready_);
  if (timeline != nullptr) timeline->begin(aside);
  program_.steps[s].bound.run(args);
  if (timeline != nullptr) timeline->end(aside, Lane::communication, static_cast<int>(s));
  aside.set(*met_[s]);
  last_met_ = static_cast<int>(s);
  if (!program_.steps[s].is_aside) wait_for(static_cast<int>(s), compute, timeline);
}

void DeviceCollectives::wait_before(size_t s, tensor::Stream& compute, DeviceTimeline* timeline) {
  if (program_.steps[s].after_aside >= 0) wait_for(program_.steps[s].after_aside, compute, timeline);
}

void DeviceCollectives::wait_for(int step, tensor::Stream& compute, DeviceTimeline* timeline) {
  if (timeline != nullptr) timeline->begin(compute);
  compute.wait(*met_[static_cast<size_t>(step)]);
  if (timeline != nullptr) timeline->end(compute, Lane::compute, -1, "wait");
  if (step == last_met_) last_met_ = -1;
}

void DeviceCollectives::join(tensor::Stream& compute) {
  if (last_met_ >= 0) compute.wait(*met_[static_cast<size_t>(std::exchange(last_met_, -1))]);
}

void DeviceCollectives::give_up(tensor::Stream& compute) {
  last_met_ = -1;
  if (!has_any()) return;
  for (tensor::Stream* each : {&compute, static_cast<tensor::Stream*>(&stream())}) {
    try {
      each->synchronize();
    } catch (const base::Error&) {
      // The first error is already being reported.
    }
  }
}

}  // namespace trireme::runtime
