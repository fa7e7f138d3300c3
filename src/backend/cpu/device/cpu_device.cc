// The CPU as a device: aligned host memory, and streams that use a borrowed thread pool.
#include "backend/cpu/device/cpu_device.h"

#include <fstream>
#include <thread>

#include "backend/cpu/device/cpu_stream.h"
#include "base/error.h"
#include "base/machine/memory.h"
#include "base/memory/memory_budget.h"
#include "base/memory/slab.h"

namespace trireme::cpu {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

}  // namespace

std::string CpuDevice::describe() const {
  return base::concat(cpu_model(), ", ", std::thread::hardware_concurrency(), " cores");
}

std::shared_ptr<void> CpuDevice::allocate(int64_t bytes) {
  // Pages are allocated on first touch, so a generous arena costs only address space.
  const size_t size = static_cast<size_t>(std::max<int64_t>(bytes, 64));
  if (bytes > base::memory_limit_bytes()) {
    base::fail(base::ErrorCode::exhausted, "no host memory for ", bytes, " bytes, the machine has ",
               base::memory_limit_bytes());
  }
  auto lease = std::make_shared<base::MemoryLease>(base::MemoryUse::scratch, static_cast<int64_t>(size));
  const std::shared_ptr<void> mapped = base::map_memory(size);
  void* const at = mapped.get();
  return {at, [lease, mapped](void*) {}};
}

std::unique_ptr<tensor::Stream> CpuDevice::open_stream(base::ThreadPool& pool) {
  return std::make_unique<CpuStream>(pool);
}

}  // namespace trireme::cpu
