// Copies small results of a device to the host while the device continues with later work.
#include "runtime/late_results.h"

#include "backend/cuda/device/cuda_device.h"

namespace trireme::runtime {

LateResults::LateResults(tensor::Device& device, base::ThreadPool& pool, int64_t bytes) : bytes_(bytes) {
  for (size_t i = 0; i < kSlots; ++i) there_[i] = device.allocate(bytes);
  if (device.kind() == tensor::DeviceKind::cpu) return;
  lane_ = dynamic_cast<cuda::CudaDevice&>(device).open_stream(pool, cuda::StreamRole::copy);
  for (size_t i = 0; i < kSlots; ++i) {
    here_[i] = device.allocate_host(bytes);
    events_[i] = cuda::cuda_stream(*lane_).make_event();
  }
}

LateResults::~LateResults() = default;

void LateResults::mark(size_t slot, tensor::Stream& stream) {
  if (lane_ != nullptr) cuda::cuda_stream(stream).set(*events_[slot]);
}

const std::byte* LateResults::fetch(size_t slot) {
  if (lane_ == nullptr) return there(slot);
  // The copy is issued only now: issued earlier, it could queue behind a copy that waits for later work.
  lane_->wait(*events_[slot]);
  lane_->download(here_[slot].get(), there_[slot].get(), bytes_);
  lane_->synchronize();
  return static_cast<const std::byte*>(here_[slot].get());
}

}  // namespace trireme::runtime
