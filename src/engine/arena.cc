// Scratch memory of a session.
#include "engine/arena.h"

#include "base/memory/memory_budget.h"

namespace trireme::engine {

void* Arena::reserve(int64_t bytes) {
  if (bytes > bytes_ || memory_ == nullptr) {
    memory_.reset();
    memory_ = device_.allocate(bytes);
    bytes_ = bytes;
  }
  return memory_.get();
}

void Arena::trim() {
  constexpr int64_t kLargePart = 16;  // a sixteenth of the limit
  const base::MemoryBudget& budget = base::process_memory();
  if (device_.kind() != tensor::DeviceKind::cpu || !budget.is_tight()) return;
  if (bytes_ <= budget.limit_bytes() / kLargePart) return;
  memory_.reset();
  bytes_ = 0;
}

}  // namespace trireme::engine
