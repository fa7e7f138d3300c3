// Bounds what pages of prompts take on their way from one session to another.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/memory/memory_budget.h"

namespace trireme::serve {

/// Any thread. What is taken goes back when its holder ends, which may outlive the room.
class PageRoom {
 public:
  class Held {
   public:
    Held(std::shared_ptr<std::atomic<int64_t>> used, int64_t bytes)
        : lease_(base::MemoryUse::bodies, bytes), used_(std::move(used)), bytes_(bytes) {
      *used_ += bytes_;
    }
    ~Held() { *used_ -= bytes_; }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    const base::MemoryLease lease_;
    const std::shared_ptr<std::atomic<int64_t>> used_;
    const int64_t bytes_;
  };

  explicit PageRoom(int64_t bytes) : bytes_(bytes) {}

  /// As many of `pages` as there is room for.
  int64_t fit(int64_t pages, int64_t page_bytes) const {
    return std::clamp<int64_t>((bytes_ - used_->load()) / page_bytes, 0, pages);
  }
  /// Throws exhausted where the server's memory is short.
  std::shared_ptr<const Held> take(int64_t pages, int64_t page_bytes) {
    return std::make_shared<const Held>(used_, pages * page_bytes);
  }

 private:
  const int64_t bytes_;
  const std::shared_ptr<std::atomic<int64_t>> used_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace trireme::serve
