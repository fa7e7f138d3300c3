// NVIDIA GPUs as devices, and their stand-in: a device that runs the same kernels thread by thread on the
// host.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
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
  std::string uuid = {};
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
/// When work of the stand-in's streams runs. `direct`: work of compute streams when it is launched, that of
/// other streams on a thread of theirs. The others hold all work back until somebody waits, and then run it
/// in an order that events allow but programs hardly expect, so that a wait that is missing gives wrong
/// results each time: `late` runs only what is waited for, `early` all other streams first, `shuffled` what
/// comes.
enum class EmulatedOrder : uint8_t { direct, late, early, shuffled };
struct EmulatedPlan {
  EmulatedOrder order = EmulatedOrder::direct;
  uint64_t seed = 0;  ///< of shuffled
};
/// "direct", "late", "early" or "shuffled:SEED". Throws invalid_argument.
EmulatedPlan parse_emulated_plan(std::string_view text);
/// What the environment's TRIREME_EMULATED_ORDER says, else direct.
EmulatedPlan emulated_plan();

/// A stand-in, for tests and for looking into wrong results: launches run on the host, one thread of a block
/// after the other. Its memory is out of reach between launches and copies, so that host code that touches it
/// crashes as it would on a GPU. Each ordinal is a device of its own, which all who open it share. Throws
/// unsupported in a build with the toolkit, whose kernels are compiled for GPUs only.
std::unique_ptr<tensor::Device> open_emulated(int ordinal = 0, EmulatedPlan plan = emulated_plan());

/// What a stream is for. Communication goes before computation where the device has to choose.
enum class StreamRole : uint8_t { compute, communication, copy };
std::string_view to_string(StreamRole role);

/// A queue of either device. Kernels are launched by one thread at a time.
class CudaStream : public tensor::Stream {
 public:
  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cuda; }
  bool can_record() const override { return true; }
  int multiprocessors() const { return multiprocessors_; }
  /// The toolkit's handle; null on the stand-in.
  CUstream_st* queue() const { return queue_; }

  /// An event to be set again and again, without a time. Waiting for one that was never set waits for
  /// nothing.
  virtual std::unique_ptr<tensor::Event> make_event() = 0;
  /// The event now stands for what was launched on this stream so far; earlier waits keep what it was.
  /// In a recording, streams that wait for an event of it become part of it; they have to be waited for
  /// before it ends.
  virtual void set(tensor::Event& event) = 0;
  /// True when all launched work is done. Does not wait; throws as synchronize().
  virtual bool is_done() = 0;
  /// True where call() works: on the stand-in.
  virtual bool has_calls() const { return false; }
  /// Runs `work` on the host in stream order; it may touch the device's memory and may wait for other
  /// streams' calls. Throws unsupported on GPUs, whose host functions may not wait for each other.
  virtual void call(std::function<void()> work);
  /// Kernels and library products that were launched so far, those of recordings when they were written down.
  /// Counted on the stand-in, for tests of what a step costs; 0 on GPUs.
  virtual int64_t launches() const { return 0; }

 protected:
  CUstream_st* queue_ = nullptr;
  int multiprocessors_ = 1;
};

/// Either device.
class CudaDevice : public tensor::Device {
 public:
  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cuda; }
  std::unique_ptr<tensor::Stream> open_stream(base::ThreadPool& pool) final {
    return open_stream(pool, StreamRole::compute);
  }
  /// `pool` serves the stand-in's blocks; one stream at a time uses it.
  virtual std::unique_ptr<CudaStream> open_stream(base::ThreadPool& pool, StreamRole role) = 0;
  /// Tells devices of all machines apart: the UUID of a GPU.
  virtual std::string identity() const = 0;
};

inline CudaStream& cuda_stream(tensor::Stream& stream) { return static_cast<CudaStream&>(stream); }
inline CUstream_st* queue_of(tensor::Stream& stream) { return cuda_stream(stream).queue(); }

}  // namespace trireme::cuda
