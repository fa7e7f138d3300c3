// NVIDIA GPUs as devices, and their stand-in: a device that runs the same kernels thread by thread on the
// host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tensor/device.h"

/// The toolkit's stream handle, without its headers.
struct CUstream_st;

namespace trireme::cuda {

/// What `trireme devices` prints of one GPU.
struct GpuInfo {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0, l2_bytes = 0;
};

/// True if this program was built with the toolkit; then the three below that open GPUs are real.
bool has_toolkit();
/// The GPUs the driver shows. Throws unavailable saying why there is none: no toolkit in this build, no
/// driver, no device, or a driver that is older than the toolkit.
std::vector<GpuInfo> list_gpus();
/// Memory comes from the device's pool, aligned to 256 bytes, and goes back to it, not to the system. Throws
/// unavailable as list_gpus(), invalid_argument for an ordinal there is not, unsupported for a GPU older than
/// sm_80. Its allocate() throws exhausted with what is free.
std::unique_ptr<tensor::Device> open_gpu(int ordinal);
/// The stand-in, for tests and for looking into wrong results: launches run on the host, one thread of a
/// block after the other. Its memory is out of reach between launches and copies, so that host code that
/// touches it crashes as it would on a GPU. Throws unsupported in a build with the toolkit, whose kernels are
/// compiled for GPUs only.
std::unique_ptr<tensor::Device> open_emulated();

/// A queue of either device. Kernels are launched by one thread at a time.
class CudaStream : public tensor::Stream {
 public:
  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cuda; }
  bool can_record() const override { return true; }
  int multiprocessors() const { return multiprocessors_; }
  /// The toolkit's handle; null on the stand-in.
  CUstream_st* queue() const { return queue_; }

 protected:
  CUstream_st* queue_ = nullptr;
  int multiprocessors_ = 1;
};

inline CudaStream& cuda_stream(tensor::Stream& stream) { return static_cast<CudaStream&>(stream); }
inline CUstream_st* queue_of(tensor::Stream& stream) { return cuda_stream(stream).queue(); }

}  // namespace trireme::cuda
