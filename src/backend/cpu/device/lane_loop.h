// A loop over tasks of which each member of a team has memory of its own, and rows that it keeps from loop to
// loop.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// Calls body(task, lane) once for each task in [0, tasks) on lanes below min(pool.size(), tasks), one task
/// of a lane at a time. A lane begins with its equal run of consecutive tasks and then helps the others. The
/// pool gives the same lane to the same member while none is late, so loops over the same rows find them in
/// the caches that wrote them.
template <class Body>
void run_lanes(base::ThreadPool& pool, int64_t tasks, const Body& body) {
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  constexpr int64_t kMost = 64;  // lanes with a share of their own; larger teams only help
  const int64_t lanes = std::min<int64_t>(pool.size(), tasks), owners = std::min(lanes, kMost);
  if (lanes <= 1) {
    for (int64_t i = 0; i < tasks; ++i) body(i, 0);
    return;
  }
  std::array<Share, kMost> shares;
  for (int64_t l = 0; l < owners; ++l) {
    shares[static_cast<size_t>(l)].next.store(tasks * l / owners, std::memory_order_relaxed);
    shares[static_cast<size_t>(l)].end = tasks * (l + 1) / owners;
  }
  pool.run(lanes, [&](int64_t lane) {
    for (int64_t k = 0; k < owners; ++k) {
      Share& share = shares[static_cast<size_t>((lane + k) % owners)];
      // A look before the addition: a share that is done stays in the caches that read it.
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int64_t i = share.next.fetch_add(1, std::memory_order_relaxed);
        if (i >= share.end) break;
        body(i, static_cast<int>(lane));
      }
    }
  });
}

}  // namespace trireme::cpu
