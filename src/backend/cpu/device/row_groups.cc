// Groups rows by the matrix that multiplies them: counting sort, copies and weighted sums of rows.
#include "backend/cpu/device/row_groups.h"

#include <algorithm>
#include <cstring>

namespace trireme::cpu {
namespace {

constexpr int64_t kTaskFloats = 16384;  // enough work for another thread

int64_t grain_of(int64_t width) { return std::max<int64_t>(1, kTaskFloats / std::max<int64_t>(1, width)); }

}  // namespace

std::span<const RowGroup> group_rows(std::span<const int64_t> chosen, int64_t matrices, const RowOrder& order,
                                     int64_t first_matrix) {
  std::fill_n(order.counts, matrices, int64_t{0});
  for (const int64_t c : chosen) {
    const int64_t m = c - first_matrix;
    if (m >= 0 && m < matrices) ++order.counts[m];
  }
  int64_t first = 0;
  size_t used = 0;
  for (int64_t m = 0; m < matrices; ++m) {
    const int64_t rows = order.counts[m];
    if (rows > 0) order.groups[used++] = {m, first, rows};
    order.counts[m] = first;
    first += rows;
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    const int64_t m = chosen[i] - first_matrix;
    if (m < 0 || m >= matrices) {
      order.place[i] = -1;
      continue;
    }
    const int64_t at = order.counts[m]++;
    order.place[i] = at;
    order.source[at] = static_cast<int64_t>(i);
  }
  return {order.groups, used};
}

void copy_rows(const RowCopy& c, base::ThreadPool& pool) {
  pool.for_range(c.rows, grain_of(c.width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (c.source[i] < 0) {
        std::fill_n(c.to + i * c.width, c.width, 0.0f);
        continue;
      }
      const float* from = c.from + c.source[i] / c.share * c.width;
      std::memcpy(c.to + i * c.width, from, static_cast<size_t>(c.width) * sizeof(float));
    }
  });
}

void sum_rows(const RowSums& s, base::ThreadPool& pool) {
  pool.for_range(s.tokens, grain_of(s.width * s.choices), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* y = s.y + t * s.width;
      std::fill_n(y, s.width, 0.0f);
      for (int64_t j = t * s.choices; j < (t + 1) * s.choices; ++j) {
        if (s.place[j] < 0) continue;
        const float* row = s.rows + s.place[j] * s.width;
        const float weight = s.weights[j];
        for (int64_t i = 0; i < s.width; ++i) y[i] += weight * row[i];
      }
    }
  });
}

}  // namespace trireme::cpu
