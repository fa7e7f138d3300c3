// A configuration under consideration, as the scheduler sees it and as the server is told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tune/simulate.h"

namespace trireme::tune {

/// Sessions side by side, and threads of each.
struct Layout {
  int instances = 1;
  int threads = 1;
  int cores() const { return instances * threads; }
  auto operator<=>(const Layout&) const = default;
};

struct Candidate {
  size_t variant = 0;  ///< of the subject: file and precision
  Layout layout;
  int64_t max_batch = 0;  ///< rows; 0: the model has no batch dimension
  int64_t window_ns = 0;
  bool keeps_window = false;         ///< max_queue_delay, kept to the letter; else the window adapts
  bool runs_whole = false;           ///< batches do not end where rows get no cheaper
  std::vector<int64_t> row_buckets;  ///< ascending, the last is max_batch; empty without a batch

  /// Unique among the candidates of a search: "v0 i2 t2 b16 w2000us a 1,2,4,8,16".
  std::string id() const;
  /// What the scheduler would be given.
  Batching batching() const;
};

/// Powers of two below `most`, and `most`; `fine`: with the steps at three quarters between them.
std::vector<int64_t> row_buckets(int64_t most, bool fine);

}  // namespace trireme::tune
