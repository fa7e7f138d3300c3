// Constants on a device in the form that a kernel reads, made when the kernel is prepared, once for all
// programs of a model.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/threads/thread_pool.h"
#include "ir/kernel.h"

namespace trireme::ops {

/// Copies `bytes` to the device.
inline std::shared_ptr<const void> on_device(tensor::Device& device, const std::vector<std::byte>& bytes) {
  std::shared_ptr<void> memory = device.allocate(std::max<int64_t>(1, static_cast<int64_t>(bytes.size())));
  base::ThreadPool pool(1);
  const std::unique_ptr<tensor::Stream> stream = device.open_stream(pool);
  stream->upload(memory.get(), bytes.data(), static_cast<int64_t>(bytes.size()));
  stream->synchronize();
  return memory;
}

/// Returns the device copy of what `make` returns, shared under `key`; null if a program is only inspected.
inline std::shared_ptr<const void> device_pack(const ir::KernelInit& init, const std::string& key,
                                               const std::function<std::vector<std::byte>()>& make) {
  if (init.device == nullptr) return nullptr;
  const std::string own = base::concat(key, " on device ", init.device->ordinal());
  return init.packs.get<void>(
      own, [&]() -> std::shared_ptr<const void> { return on_device(*init.device, make()); });
}

/// The bytes of a vector's elements, appended.
template <class T>
void append_bytes(std::vector<std::byte>& out, const std::vector<T>& values) {
  const size_t at = out.size();
  out.resize(at + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(out.data() + at, values.data(), values.size() * sizeof(T));
}

}  // namespace trireme::ops
