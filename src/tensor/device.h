// What a device and its command stream offer to programs: bytes and order, no operator knowledge.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/threads/thread_pool.h"

namespace trireme::tensor {

enum class DeviceKind : uint8_t { cpu, cuda, null };

inline std::string_view name_of(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : kind == DeviceKind::cuda ? "cuda" : "null";
}

class Stream;

/// Launches and copies that were recorded once, to be repeated with the same addresses.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay(Stream& stream) = 0;
};

/// A point of a stream that another stream can wait for, and its time.
class Event {
 public:
  virtual ~Event() = default;
  /// Nanoseconds from `earlier`, an event of the same device, to this one. Both must have passed: call it
  /// after synchronize(). The default is the host's clock when the event was made.
  virtual int64_t ns_since(const Event& earlier) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(made_ - earlier.made_).count();
  }

 private:
  std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
};

/// An ordered queue of kernel launches. Kernels cast it to their backend's stream. The defaults are those of
/// a device whose memory is the host's and whose launches are done when they return.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;
  /// Returns when all launched work is done.
  virtual void synchronize() = 0;

  /// Copies in stream order, `from` or `to` in host memory (which others leave alone until synchronize()),
  /// and within the device.
  virtual void upload(void* to, const void* from, int64_t bytes) { copy(to, from, bytes); }
  virtual void download(void* to, const void* from, int64_t bytes) { copy(to, from, bytes); }
  virtual void copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  /// Between the two launches and copies are not done but written down. Throws unsupported where can_record()
  /// is false.
  virtual bool can_record() const { return false; }
  virtual void begin_recording() { base::fail_unsupported("this stream does not record"); }
  virtual std::unique_ptr<Recording> end_recording() {
    base::fail_unsupported("this stream does not record");
  }

  /// What follows on this stream starts after `event` of another stream of the device.
  virtual std::unique_ptr<Event> record_event() { return std::make_unique<Event>(); }
  virtual void wait(const Event& /*event*/) {}
};

/// Memory and streams of one device.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// Human words for `trireme devices`: model, cores or multiprocessors, memory.
  virtual std::string describe() const = 0;
  /// Memory aligned to 64 bytes at least, freed with the handle. Throws exhausted if there is none.
  virtual std::shared_ptr<void> allocate(int64_t bytes) = 0;
  /// A stream: on cpu its kernels share their loops with `pool`, which must outlive it; on cuda one hardware
  /// queue.
  virtual std::unique_ptr<Stream> open_stream(base::ThreadPool& pool) = 0;
  /// Memory of the host that the device copies from and to without a stop on the way.
  virtual std::shared_ptr<void> allocate_host(int64_t bytes) { return allocate(bytes); }
  /// Tells devices of a kind apart in keys of shared caches: the ordinal of a GPU.
  virtual int ordinal() const { return 0; }
  /// All memory of the device; 0: it shares the host's.
  virtual int64_t memory_bytes() const { return 0; }
};

}  // namespace trireme::tensor
