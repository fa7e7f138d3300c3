// Accounts for memory with one counter per use. A taker adds first and checks afterwards, so that two
// concurrent takers cannot both pass the limit unnoticed.
#include "base/memory/memory_budget.h"

#include <malloc.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace trireme::base {
namespace {

constexpr int64_t kSmallBytes = int64_t{64} << 10;
constexpr int64_t kLookBytes = int64_t{32} << 20;

/// Resident memory of the process, in bytes, that is not backed by a file.
int64_t anonymous_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0;
  file >> size >> resident >> shared;
  return (resident - shared) * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

std::string_view name_of(MemoryUse use) {
  switch (use) {
    case MemoryUse::bodies: return "bodies";
    case MemoryUse::tensors: return "tensors";
    case MemoryUse::scratch: return "scratch";
    case MemoryUse::answers: return "answers";
  }
  return "";
}

int64_t MemoryBudget::used_bytes() const {
  int64_t sum = 0;
  for (const Count& used : used_) sum += used.load(std::memory_order_relaxed);
  return sum;
}

bool MemoryBudget::try_take(MemoryUse use, int64_t bytes) noexcept {
  Count& used = used_[static_cast<size_t>(use)];
  const int64_t limit = limit_bytes();
  if (limit == INT64_MAX) {  // counted even without a limit, as one may be set later
    used.fetch_add(bytes, std::memory_order_relaxed);
    return true;
  }
  // Checked before the bytes are counted, because none of them is resident yet.
  static std::atomic<int64_t> since_look{0};
  if (since_look.fetch_add(bytes, std::memory_order_relaxed) + bytes >= kLookBytes) {
    since_look.store(0, std::memory_order_relaxed);
    return_unused();
  }
  // Sequentially consistent: of two takers that together exceed the limit, at least one sees the excess.
  used.fetch_add(bytes);
  if (used_bytes() <= limit + (bytes <= kSmallBytes ? limit / 16 : 0)) return true;
  used.fetch_sub(bytes);
  refused_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

/// The allocator keeps freed pieces below its mmap threshold in per-thread arenas, and together these may
/// exceed what the budget leaves free. If they are more than an eighth of the limit, this returns them to the
/// system. Called before every 32 MiB that are taken, even if much memory is free, since a single piece may
/// take all of it.
void MemoryBudget::return_unused() const noexcept {
  const int64_t limit = limit_bytes();
  try {
    const int64_t resident = anonymous_bytes();
    if (resident > limit / 4 && resident - used_bytes() > limit / 8) malloc_trim(0);
  } catch (const std::exception&) {
    return;  // no memory even for the check
  }
}

void MemoryBudget::give_back(MemoryUse use, int64_t bytes) noexcept {
  used_[static_cast<size_t>(use)].fetch_sub(bytes, std::memory_order_relaxed);
}

bool MemoryBudget::is_tight() const {
  const int64_t limit = limit_bytes();
  return limit != INT64_MAX && used_bytes() > limit - limit / 4;
}

std::string MemoryBudget::state() const {
  return concat(" of ", limit_bytes(), " bytes allowed, ", used_bytes(), " are in use");
}

MemoryBudget& process_memory() {
  // Never destroyed, because tensors with static lifetime return their share after all other destructors.
  static MemoryBudget& budget = *new MemoryBudget;
  return budget;
}

bool MemoryLease::try_resize(int64_t bytes) noexcept {
  if (bytes > bytes_ && (budget_ == nullptr || !budget_->try_take(use_, bytes - bytes_))) return false;
  if (bytes < bytes_) budget_->give_back(use_, bytes_ - bytes);
  bytes_ = bytes;
  return true;
}

void MemoryLease::resize(int64_t bytes) {
  if (try_resize(bytes)) return;
  check(budget_ != nullptr, "a lease of nothing cannot grow");
  fail(ErrorCode::exhausted, "not enough memory is left; try again later, or raise the limit: ", bytes,
       " bytes of ", name_of(use_), " are wanted,", budget_->state());
}

}  // namespace trireme::base
