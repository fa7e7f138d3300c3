// What adapters add to the rows of a product: rows sorted by adapter, four of them meet its weights together.
#include "backend/cpu/dense/adapter_rows.h"

#include <algorithm>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dense/adapter_rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

// One definition for all levels.
#ifndef TRIREME_ADAPTER_TILE
#define TRIREME_ADAPTER_TILE
namespace trireme::cpu {
namespace {

constexpr int64_t kTileRows = 4;

/// Up to four rows of one adapter.
struct AdapterTile {
  int32_t rows[kTileRows];  // the last one again where there are fewer
  int32_t count = 0, slot = 0, rank = 0;
};

}  // namespace
}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

/// to[i * stride + j] = x[i] . a[j * depth ...]: each sum is one chain over vectors of the depth.
template <int kRows, int kRanks>
HWY_INLINE void dots(const float* const* x, const float* a, int64_t depth, float* to, int64_t stride) {
  VF sum[kRows][kRanks];
  for (auto& row : sum) {
    for (VF& s : row) s = hn::Zero(kF);
  }
  const auto n = static_cast<size_t>(depth);
  size_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    VF w[kRanks];
    for (int j = 0; j < kRanks; ++j) w[j] = hn::LoadU(kF, a + static_cast<size_t>(j) * n + k);
    for (int i = 0; i < kRows; ++i) {
      const VF v = hn::LoadU(kF, x[i] + k);
      for (int j = 0; j < kRanks; ++j) sum[i][j] = hn::MulAdd(v, w[j], sum[i][j]);
    }
  }
  if (k < n) {
    for (int i = 0; i < kRows; ++i) {
      const VF v = load_n(x[i] + k, n - k);
      for (int j = 0; j < kRanks; ++j) {
        const VF w = load_n(a + static_cast<size_t>(j) * n + k, n - k);
        sum[i][j] = hn::MulAdd(v, w, sum[i][j]);
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kRanks; ++j) to[i * stride + j] = hn::GetLane(hn::SumOfLanes(kF, sum[i][j]));
  }
}

template <int kRows>
HWY_INLINE void dots_of_rows(const float* const* x, const float* a, const AdapterRows& c, int64_t ranks,
                             float* to) {
  int64_t r = 0;
  for (; r + 4 <= ranks; r += 4) dots<kRows, 4>(x, a + r * c.in, c.in, to + r, c.most_rank);
  for (; r < ranks; ++r) dots<kRows, 1>(x, a + r * c.in, c.in, to + r, c.most_rank);
}

/// Ranks [begin, end) of a tile's rows: u[row of the tile] holds x a'.
void adapter_down(const AdapterRows& c, const AdapterTile& tile, float* u, int64_t begin, int64_t end) {
  const float* x[kTileRows];
  for (int i = 0; i < kTileRows; ++i) x[i] = c.x + tile.rows[i] * c.in;
  const float* a = c.a + (tile.slot * c.most_rank + begin) * c.in;
  if (tile.count == kTileRows) return dots_of_rows<kTileRows>(x, a, c, end - begin, u + begin);
  for (int i = 0; i < tile.count; ++i) dots_of_rows<1>(x + i, a, c, end - begin, u + i * c.most_rank + begin);
}

/// Rows of one tile from `first` on, and their sums x a'.
struct Summed {
  const AdapterRows& call;
  const AdapterTile& tile;
  const float* u;  // [rows of the tile, most_rank]
  int first = 0;

  float* y(int row) const { return call.y + tile.rows[first + row] * call.out; }
  float factor(int row, int64_t r) const { return u[(first + row) * call.most_rank + r]; }
};

/// y[column ...] += u b, kN vectors of kRows rows; `lanes` of the last vector count.
template <int kRows, int kN>
HWY_INLINE void add_columns(const Summed& s, int64_t column, size_t lanes) {
  VF sum[kRows][kN];
  for (auto& row : sum) {
    for (VF& v : row) v = hn::Zero(kF);
  }
  const int64_t out = s.call.out;
  const float* b = s.call.b + s.tile.slot * s.call.most_rank * out + column;
  for (int64_t r = 0; r < s.tile.rank; ++r, b += out) {
    VF w[kN];
    for (int v = 0; v < kN; ++v)
      w[v] = lanes == kLanes ? hn::LoadU(kF, b + static_cast<size_t>(v) * kLanes) : load_n(b, lanes);
    for (int i = 0; i < kRows; ++i) {
      const VF factor = set(s.factor(i, r));
      for (int v = 0; v < kN; ++v) sum[i][v] = hn::MulAdd(factor, w[v], sum[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    float* y = s.y(i) + column;
    for (int v = 0; v < kN; ++v, y += kLanes) {
      if (lanes == kLanes) {
        hn::StoreU(hn::Add(hn::LoadU(kF, y), sum[i][v]), kF, y);
      } else {
        store_n(hn::Add(load_n(y, lanes), sum[i][v]), y, lanes);
      }
    }
  }
}

template <int kRows>
HWY_INLINE void add_range(const Summed& s, int64_t begin, int64_t end) {
  constexpr auto kWide = static_cast<int64_t>(kLanes);
  int64_t column = begin;
  for (; column + 4 * kWide <= end; column += 4 * kWide) add_columns<kRows, 4>(s, column, kLanes);
  for (; column + kWide <= end; column += kWide) add_columns<kRows, 1>(s, column, kLanes);
  if (column < end) add_columns<kRows, 1>(s, column, static_cast<size_t>(end - column));
}

/// Columns [begin, end) of a tile's rows of y.
void adapter_up(const AdapterRows& c, const AdapterTile& tile, const float* u, int64_t begin, int64_t end) {
  if (tile.count == kTileRows) return add_range<kTileRows>({c, tile, u}, begin, end);
  for (int i = 0; i < tile.count; ++i) add_range<1>({c, tile, u, i}, begin, end);
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {
namespace {

HWY_EXPORT(adapter_down);
HWY_EXPORT(adapter_up);

constexpr int64_t kRankBlock = 4, kColumnBlock = 512;
constexpr int64_t kTaskFlop = 32768;  // multiply-adds worth handing to another thread

/// The parts of the workspace, each on a cache line of its own.
struct Places {
  int64_t keys, tiles, bytes;

  explicit Places(const AdapterRows& c) {
    const auto aligned = [](int64_t n) { return (n + 63) / 64 * 64; };
    keys = aligned(c.rows * c.most_rank * static_cast<int64_t>(sizeof(float)));
    tiles = keys + aligned(c.rows * static_cast<int64_t>(sizeof(uint64_t)));
    bytes = tiles + aligned(c.rows * static_cast<int64_t>(sizeof(AdapterTile)));
  }
};

/// Rows that have an adapter, four of one adapter to a tile; returns how many tiles.
int64_t fill_tiles(const AdapterRows& c, uint64_t* keys, AdapterTile* tiles) {
  int64_t active = 0;
  for (int64_t row = 0; row < c.rows; ++row) {
    const int32_t slot = c.slots[row];
    if (slot >= 0 && c.ranks[slot] > 0)
      keys[active++] = static_cast<uint64_t>(slot) << 32 | static_cast<uint64_t>(row);
  }
  if (!std::is_sorted(keys, keys + active)) std::sort(keys, keys + active);
  int64_t count = 0;
  for (int64_t i = 0; i < active; ++i) {
    const auto slot = static_cast<int32_t>(keys[i] >> 32), row = static_cast<int32_t>(keys[i]);
    const bool goes_on = count > 0 && tiles[count - 1].slot == slot && tiles[count - 1].count < kTileRows;
    if (!goes_on) {
      tiles[count++] = {.rows = {}, .count = 0, .slot = slot, .rank = c.ranks[slot]};
    }
    AdapterTile& tile = tiles[count - 1];
    std::fill(tile.rows + tile.count++, tile.rows + kTileRows, row);
  }
  return count;
}

}  // namespace

int64_t adapter_rows_workspace_bytes(const AdapterRows& call) { return Places(call).bytes; }

const char* adapter_fault(const AdapterRows& c, int64_t* value) {
  for (int64_t row = 0; row < c.rows; ++row) {
    *value = c.slots[row];
    if (*value < 0) continue;
    if (*value >= c.slot_count) return "no adapter has the slot";
    *value = c.ranks[*value];
    if (*value < 0 || *value > c.most_rank) return "an adapter's rank is out of range";
  }
  return nullptr;
}

void adapter_rows(const AdapterRows& c, base::ThreadPool& pool) {
  const Places at(c);
  auto* bytes = static_cast<std::byte*>(c.workspace);
  auto* u = reinterpret_cast<float*>(bytes);  // [tile's rows, most_rank]
  auto* tiles = reinterpret_cast<AdapterTile*>(bytes + at.tiles);
  const int64_t count = fill_tiles(c, reinterpret_cast<uint64_t*>(bytes + at.keys), tiles);
  if (count == 0) return;
  // Tiles of fewer rows than four take the room of as many as they have.
  auto* begins = reinterpret_cast<uint64_t*>(bytes + at.keys);
  uint64_t begin = 0;
  for (int64_t t = 0; t < count; ++t) {
    begins[t] = begin;
    begin += static_cast<uint64_t>(tiles[t].count * c.most_rank);
  }
  const auto down = HWY_DYNAMIC_DISPATCH(adapter_down);
  const auto up = HWY_DYNAMIC_DISPATCH(adapter_up);
  const auto each = [&](int64_t blocks, int64_t block, int64_t flop, const auto& act) {
    const int64_t grain = std::max<int64_t>(1, kTaskFlop / std::max<int64_t>(1, flop));
    pool.for_range(count * blocks, grain, [&](int64_t first, int64_t last) {
      for (int64_t job = first; job < last; ++job)
        act(tiles[job / blocks], u + begins[job / blocks], job % blocks * block);
    });
  };
  each((c.most_rank + kRankBlock - 1) / kRankBlock, kRankBlock, kTileRows * kRankBlock * c.in,
       [&](const AdapterTile& tile, float* to, int64_t from) {
         const int64_t end = std::min<int64_t>(tile.rank, from + kRankBlock);
         if (from < end) down(c, tile, to, from, end);
       });
  each((c.out + kColumnBlock - 1) / kColumnBlock, kColumnBlock, kTileRows * kColumnBlock * c.most_rank,
       [&](const AdapterTile& tile, float* of, int64_t from) {
         up(c, tile, of, from, std::min(c.out, from + kColumnBlock));
       });
}

}  // namespace trireme::cpu
#endif
