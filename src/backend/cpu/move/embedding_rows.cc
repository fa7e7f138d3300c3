// Row gathers are copies: indices are checked first, then rows are moved whole.
#include "backend/cpu/move/embedding_rows.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace trireme::cpu {
namespace {

// 64 KiB a piece: some microseconds of copying.
int64_t row_grain(int64_t row_bytes) { return std::max<int64_t>(1, 65536 / std::max<int64_t>(1, row_bytes)); }

template <class Index>
void check_indices(const Index* index, int64_t n, int64_t rows) {
  for (int64_t i = 0; i < n; ++i) {
    const bool inside = index[i] >= -rows && index[i] < rows;
    base::require(inside, "gather index is out of range: index ", index[i], " at ", i, ", rows ", rows);
  }
}

template <class Index>
int64_t wrap(Index index, int64_t rows) {
  return index < 0 ? static_cast<int64_t>(index) + rows : static_cast<int64_t>(index);
}

template <class Index>
void gather(const GatherRows& g, const Index* index, base::ThreadPool& pool) {
  check_indices(index, g.indices, g.table_rows);
  const size_t bytes = static_cast<size_t>(g.row_bytes);
  pool.for_range(g.outer * g.indices, row_grain(g.row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t o = t / g.indices, row = wrap(index[t % g.indices], g.table_rows);
      const char* from = static_cast<const char*>(g.table) + (o * g.table_rows + row) * g.row_bytes;
      char* to = static_cast<char*>(g.y) + t * g.row_bytes;
      // Common element sizes without the call.
      if (bytes == 4)
        std::memcpy(to, from, 4);
      else if (bytes == 8)
        std::memcpy(to, from, 8);
      else
        std::memcpy(to, from, bytes);
    }
  });
}

}  // namespace

void gather_rows(const GatherRows& args, const int64_t* index, base::ThreadPool& pool) {
  gather(args, index, pool);
}
void gather_rows(const GatherRows& args, const int32_t* index, base::ThreadPool& pool) {
  gather(args, index, pool);
}

void embedding_sum(const EmbeddingSum& args, base::ThreadPool& pool) {
  base::require(args.count >= 1 && args.count <= 3, "embedding sum takes 1 to 3 tables, got ", args.count);
  for (int t = 0; t < args.count; ++t) check_indices(args.index[t], args.tokens, args.rows[t]);
  pool.for_range(args.tokens, row_grain(args.width * 4 * args.count), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* y = args.y + i * args.width;
      const float* row[3] = {};
      for (int t = 0; t < args.count; ++t) {
        row[t] = args.tables[t] + wrap(args.index[t][i], args.rows[t]) * args.width;
      }
      switch (args.count) {
        case 1: std::copy_n(row[0], args.width, y); break;
        case 2:
          for (int64_t c = 0; c < args.width; ++c) y[c] = row[0][c] + row[1][c];
          break;
        default:
          for (int64_t c = 0; c < args.width; ++c) y[c] = row[0][c] + row[1][c] + row[2][c];
      }
    }
  });
}

void scatter_add_rows(const ScatterAddRows& args, base::ThreadPool& pool) {
  check_indices(args.index, args.indices, args.table_rows);
  // Column blocks of a cache line or more: no two tasks write the same line of a row (aligned tables).
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, args.indices * 16));
  pool.for_range((args.width + 15) / 16, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * 16, last = std::min(args.width, end * 16);
    for (int64_t i = 0; i < args.indices; ++i) {
      float* to = args.table + wrap(args.index[i], args.table_rows) * args.width;
      const float* from = args.dy + i * args.width;
      for (int64_t c = first; c < last; ++c) to[c] += from[c];
    }
  });
}

}  // namespace trireme::cpu
