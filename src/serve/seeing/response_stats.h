// Triton's response_stats: how the answers of a decoupled model went, by their place in the answer to a
// request.
#pragma once

#include <cstdint>
#include <vector>

#include "base/guarded.h"
#include "base/text/json.h"

namespace trireme::serve {

/// Any thread may count and read.
class ResponseStats {
 public:
  /// Answer `index` (0, 1, ...) was computed and made ready to leave.
  void count_answer(int64_t index, int64_t infer_ns, int64_t output_ns);
  /// The end of the answers came without one.
  void count_empty(int64_t index, int64_t took_ns);
  /// The request failed, or its client left, when this answer would have come.
  void count_failure(int64_t index, int64_t took_ns);
  void count_cancel(int64_t index, int64_t took_ns);

  /// `{"0": {"compute_infer": {"count", "ns"}, ...}, ...}`.
  base::Json json() const;

 private:
  struct Sum {
    uint64_t count = 0, ns = 0;
    void add(int64_t by_ns);
    base::Json json() const;
  };
  struct Place {
    Sum infer, output, success, fail, empty, cancel;
  };
  static Place& at(std::vector<Place>& places, int64_t index);

  base::Guarded<std::vector<Place>> places_;
};

}  // namespace trireme::serve
