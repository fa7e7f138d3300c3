// An NVIDIA GPU as a device: memory from a stream-ordered pool, streams in hardware queues, errors as
// base::Error.
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

/// The GPUs the driver shows. Throws unavailable saying why there is none: no driver, no device, or a driver
/// that is older than this program's toolkit.
std::vector<GpuInfo> list_gpus();

/// A hardware queue. Kernels are launched by one thread at a time.
class CudaStream final : public tensor::Stream {
 public:
  /// `high_priority`: its kernels go before those of other streams where both could start.
  explicit CudaStream(int ordinal, bool high_priority = false);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cuda; }
  /// Throws unavailable with the device's words if a launch before failed.
  void synchronize() override;
  CUstream_st* handle() const { return stream_; }
  int multiprocessors() const { return multiprocessors_; }

 private:
  int ordinal_ = 0, multiprocessors_ = 1;
  CUstream_st* stream_ = nullptr;
};

class CudaDevice final : public tensor::Device {
 public:
  /// Throws unavailable as list_gpus(), invalid_argument for an ordinal there is not, unsupported for a GPU
  /// older than sm_80.
  explicit CudaDevice(int ordinal);

  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cuda; }
  std::string describe() const override;
  /// From the device's pool, aligned to 256 bytes; given back to the pool, not to the system. Throws
  /// exhausted with what is free.
  std::shared_ptr<void> allocate(int64_t bytes) override;
  std::unique_ptr<tensor::Stream> open_stream(base::ThreadPool& pool) override;

  /// Host memory that the device copies from and to without staging. Throws exhausted.
  static std::shared_ptr<void> allocate_pinned(int64_t bytes);

 private:
  GpuInfo info_;
};

/// The CUDA queue behind a kernel's stream. The compiler only hands CUDA kernels CUDA streams.
inline CUstream_st* queue_of(tensor::Stream& stream) { return static_cast<CudaStream&>(stream).handle(); }

/// Asynchronous copies in stream order. Host memory should be pinned, else the copy waits.
void copy_to_device(void* device, const void* host, int64_t bytes, tensor::Stream& stream);
void copy_to_host(void* host, const void* device, int64_t bytes, tensor::Stream& stream);

}  // namespace trireme::cuda
