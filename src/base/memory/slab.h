// Memory for what lives as long as a model (packed weights, arenas): large mappings on huge pages.
#pragma once

#include <cstddef>
#include <memory>

#include "base/guarded.h"
#include "base/memory/memory_budget.h"

namespace trireme::base {

/// Maps `bytes` of zeros, on huge pages where the system grants them: a processor that translates 4 KiB at a
/// time spends a tenth of a convolution's time on it under virtualization. Pages come on first touch. Throws
/// exhausted.
std::shared_ptr<void> map_memory(size_t bytes);

/// Hands out pieces of large mappings one after another, aligned to 64 bytes. A mapping goes back when all
/// its pieces have gone. Any thread. Throws exhausted.
class Slab {
 public:
  std::shared_ptr<char> allocate(size_t bytes) const;

 private:
  /// Of the account only what was handed out: the rest is address space.
  struct Mapping {
    std::shared_ptr<void> memory;
    MemoryLease lease;
  };
  struct Rest {
    std::shared_ptr<Mapping> mapping;
    char* at = nullptr;
    size_t left = 0;
  };
  mutable Guarded<Rest> rest_ = {};
};

}  // namespace trireme::base
