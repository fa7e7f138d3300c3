// What a device and its command stream offer to programs: bytes and order, no operator knowledge.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/thread_pool.h"

namespace trireme::tensor {

enum class DeviceKind : uint8_t { cpu, cuda, null };

inline std::string_view name_of(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : kind == DeviceKind::cuda ? "cuda" : "null";
}

/// An ordered queue of kernel launches. Kernels cast it to their backend's stream.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;
  /// Returns when all launched work is done.
  virtual void synchronize() = 0;
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
};

}  // namespace trireme::tensor
