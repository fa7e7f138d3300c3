// One account of the memory that a program's tensors, buffers and arenas take, against one limit.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::base {

/// What memory is for, as metrics show it: bodies of requests as received and inflated; tensors, of models
/// and of requests; scratch memory of programs and packed weights; answers on their way out.
enum class MemoryUse : uint8_t { bodies, tensors, scratch, answers };
constexpr std::array kMemoryUses = {MemoryUse::bodies, MemoryUse::tensors, MemoryUse::scratch,
                                    MemoryUse::answers};
std::string_view name_of(MemoryUse use);

/// Counts what is taken and refuses what would go beyond the limit. Any thread; no lock, no waiting.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t limit_bytes = INT64_MAX) : limit_bytes_(limit_bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  /// Holds for what is taken from now on.
  void set_limit(int64_t bytes) { limit_bytes_.store(bytes, std::memory_order_relaxed); }
  int64_t limit_bytes() const { return limit_bytes_.load(std::memory_order_relaxed); }

  /// False, and nothing taken, where the limit would be passed. Pieces of at most 64 KiB may go a sixteenth
  /// beyond it, so that probes, metrics and error messages find room while large requests are refused.
  bool try_take(MemoryUse use, int64_t bytes) noexcept;
  void give_back(MemoryUse use, int64_t bytes) noexcept;

  int64_t used_bytes() const;
  int64_t used_bytes(MemoryUse use) const { return of(use).load(std::memory_order_relaxed); }
  /// Takings refused since the start.
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  /// Less than a quarter is left: what was kept only to be faster next time should go.
  bool is_tight() const;
  /// " of 2147483648 bytes allowed, 1610612736 are in use", for messages.
  std::string state() const;

 private:
  using Count = std::atomic<int64_t>;
  void return_unused() const noexcept;
  const Count& of(MemoryUse use) const { return used_[static_cast<size_t>(use)]; }

  std::array<Count, kMemoryUses.size()> used_{};
  std::atomic<uint64_t> refused_{0};
  std::atomic<int64_t> limit_bytes_;
};

/// The account of this process, as its memory is one. Without a limit until a server sets it.
MemoryBudget& process_memory();

/// A share of a budget that goes back at the end of its life. The account outlives it.
class MemoryLease {
 public:
  MemoryLease() = default;
  /// Throws exhausted if there is not so much left.
  MemoryLease(MemoryUse use, int64_t bytes, MemoryBudget& budget = process_memory())
      : budget_(&budget), use_(use) {
    resize(bytes);
  }
  MemoryLease(MemoryLease&& other) noexcept { swap(other); }
  MemoryLease& operator=(MemoryLease&& other) noexcept {
    MemoryLease taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~MemoryLease() {
    if (bytes_ > 0) budget_->give_back(use_, bytes_);
  }

  int64_t bytes() const { return bytes_; }
  /// Takes more or gives some back. False, or exhausted thrown, if there is not so much left; then it is as
  /// it was.
  bool try_resize(int64_t bytes) noexcept;
  void resize(int64_t bytes);
  void swap(MemoryLease& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    std::swap(use_, other.use_);
  }

 private:
  MemoryBudget* budget_ = nullptr;  ///< null: a lease of nothing, which cannot grow
  int64_t bytes_ = 0;
  MemoryUse use_ = MemoryUse::tensors;
};

}  // namespace trireme::base
