// Resizes one result row: vectors blend its source rows, then permutations of lanes pick columns from two
// vectors at a time.
#include "backend/cpu/move/resize_lines.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/move/resize_lines.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kStep = static_cast<int64_t>(kLanes);
// y[i] = sum of weight[k] * source[k][i]. The sum starts from zero, except with two taps.
template <int kTaps>
void blend(const float* const* source, const float* weight, int64_t taps, float* y, int64_t n) {
  const int64_t count = kTaps > 0 ? kTaps : taps;
  const auto at = [&](int64_t i, const auto& load) HWY_ATTR {
    VF sum = hn::Mul(set(weight[0]), load(source[0] + i));
    if (count != 2) sum = hn::Add(hn::Zero(kF), sum);
    for (int64_t k = 1; k < count; ++k) sum = hn::Add(sum, hn::Mul(set(weight[k]), load(source[k] + i)));
    return sum;
  };
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    hn::StoreU(at(i, [](const float* p) HWY_ATTR { return hn::LoadU(kF, p); }), kF, y + i);
  }
  const size_t rest = static_cast<size_t>(n - i);
  if (rest > 0) store_n(at(i, [rest](const float* p) HWY_ATTR { return load_n(p, rest); }), y + i, rest);
}

void blend_rows(const float* const* source, const float* weight, int64_t taps, float* y, int64_t n) {
  if (taps == 2) return blend<2>(source, weight, taps, y, n);
  if (taps == 4) return blend<4>(source, weight, taps, y, n);
  blend<0>(source, weight, taps, y, n);
}

// Blends whole pixels of `inner` floats.
void blend_pixels(const LineAxis& a, const float* x, int64_t inner, float* y) {
  const float* source[kMostResizeTaps];
  float weight[kMostResizeTaps];
  for (int64_t o = 0; o < a.out; ++o) {
    for (int64_t k = 0; k < a.taps; ++k) {
      const size_t at = static_cast<size_t>(k * a.out + o);
      source[k] = x + a.index[at] * inner;
      weight[k] = a.weight[at];
    }
    blend_rows(source, weight, a.taps, y + o * inner, inner);
  }
}

struct Columns {
  const LineAxis& axis;
  bool nearest;
  const float* x;
  float* y;
};

void pick_scalar(const Columns& g, int64_t begin, int64_t end) {
  const auto& [a, nearest, x, y] = g;
  for (int64_t o = begin; o < end; ++o) {
    if (nearest) {
      std::memcpy(y + o, x + a.index[static_cast<size_t>(o)], sizeof(float));
      continue;
    }
    float sum = a.taps == 2 ? -0.0f : 0.0f;
    for (int64_t k = 0; k < a.taps; ++k) {
      const size_t at = static_cast<size_t>(k * a.out + o);
      sum += a.weight[at] * x[a.index[at]];
    }
    y[o] = sum;
  }
}

// Lane i is element index[i] of low and high together.
HWY_INLINE VF pick_lanes(VF low, VF high, VI index) {
  const VI inside = hn::And(index, hn::Set(kI, static_cast<int32_t>(kLanes) - 1));
  const auto lanes = hn::IndicesFromVec(kF, inside);
  const MF is_low = hn::RebindMask(kF, hn::Eq(index, inside));
  return hn::IfThenElse(is_low, hn::TableLookupLanes(low, lanes), hn::TableLookupLanes(high, lanes));
}

// Columns from the 2 kLanes elements at `x`, which holds element `first` of the row.
template <bool kNearest>
HWY_INLINE VF pick_vector(const LineAxis& a, const float* x, int64_t first, int64_t o) {
  const VF low = hn::LoadU(kF, x), high = hn::LoadU(kF, x + kStep);
  const VI shift = hn::Set(kI, static_cast<int32_t>(first));
  VF sum = hn::Zero(kF);
  for (int64_t k = 0; k < (kNearest ? 1 : a.taps); ++k) {
    const VI index = hn::Sub(hn::LoadU(kI, a.index.data() + k * a.out + o), shift);
    const VF v = pick_lanes(low, high, index);
    if (kNearest) return v;
    const VF term = hn::Mul(hn::LoadU(kF, a.weight.data() + k * a.out + o), v);
    sum = k == 0 && a.taps == 2 ? term : hn::Add(sum, term);
  }
  return sum;
}

// `room` is the number of floats that may be read from x.
template <bool kNearest>
void pick_row(const LineAxis& a, const float* x, int64_t room, float* y) {
  const int32_t *lowest = a.index.data(), *highest = lowest + (kNearest ? 0 : (a.taps - 1) * a.out);
  int64_t o = 0;
  for (; o + kStep <= a.out; o += kStep) {
    const int64_t first = std::min(std::max<int64_t>(0, lowest[o] - a.ripple), room - 2 * kStep);
    if (first < 0 || highest[o + kStep - 1] + a.ripple - first >= 2 * kStep) {
      pick_scalar({a, kNearest, x, y}, o, o + kStep);
    } else {
      hn::StoreU(pick_vector<kNearest>(a, x + first, first, o), kF, y + o);
    }
  }
  pick_scalar({a, kNearest, x, y}, o, a.out);
}

void pick_columns(const LineAxis& a, bool nearest, const float* x, int64_t room, float* y) {
  return nearest ? pick_row<true>(a, x, room, y) : pick_row<false>(a, x, room, y);
}

int64_t lanes() { return kStep; }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(blend_rows);
HWY_EXPORT(blend_pixels);
HWY_EXPORT(pick_columns);
HWY_EXPORT(lanes);

namespace {

constexpr int64_t kPieces = 16;

// Floats of one blended row, including room for vector reads past its end.
int64_t line_room(const ResizeLines& g) {
  return (g.columns == nullptr ? 1 : g.columns->in) * g.inner + 2 * HWY_DYNAMIC_DISPATCH(lanes)();
}

int64_t row_count(const ResizeLines& g) { return g.outer * (g.rows == nullptr ? 1 : g.rows->out); }

// At most one piece per source row, so that the scratch stays linear in the operand.
int64_t piece_count(const ResizeLines& g) {
  return std::min({kPieces, row_count(g), g.outer * (g.rows == nullptr ? 1 : g.rows->in)});
}

template <class T>
void pick_elements(const LineAxis& a, const T* x, int64_t inner, T* y) {
  if (inner == 1) {
    for (int64_t o = 0; o < a.out; ++o) y[o] = x[a.index[static_cast<size_t>(o)]];
    return;
  }
  for (int64_t o = 0; o < a.out; ++o)
    std::copy_n(x + a.index[static_cast<size_t>(o)] * inner, inner, y + o * inner);
}

void blend_line(const ResizeLines& g, int64_t o, const float* x, int64_t line, float* y) {
  const float* source[kMostResizeTaps];
  float weight[kMostResizeTaps];
  for (int64_t k = 0; k < g.rows->taps; ++k) {
    const size_t at = static_cast<size_t>(k * g.rows->out + o);
    source[k] = x + g.rows->index[at] * line;
    weight[k] = g.rows->weight[at];
  }
  HWY_DYNAMIC_DISPATCH(blend_rows)(source, weight, g.rows->taps, y, line);
}

void run_row(const ResizeLines& g, int64_t row, float* scratch) {
  const int64_t in = g.columns == nullptr ? 1 : g.columns->in,
                out = g.columns == nullptr ? 1 : g.columns->out;
  const int64_t rows = g.rows == nullptr ? 1 : g.rows->out, high = g.rows == nullptr ? 1 : g.rows->in;
  const int64_t line = in * g.inner, o = row % rows;
  const float* x = static_cast<const float*>(g.x) + row / rows * high * line;
  float* y = static_cast<float*>(g.y) + row * out * g.inner;
  int64_t room = line;
  if (g.rows != nullptr && !g.nearest) {
    float* blended = g.columns == nullptr ? y : scratch;
    blend_line(g, o, x, line, blended);
    if (g.columns == nullptr) return;
    x = scratch;
    room = line_room(g);
  } else if (g.rows != nullptr) {
    x += g.rows->index[static_cast<size_t>(o)] * line;
  }
  if (g.columns == nullptr) {
    std::copy_n(x, line, y);
  } else if (g.inner > 1) {
    return g.nearest ? pick_elements(*g.columns, x, g.inner, y)
                     : HWY_DYNAMIC_DISPATCH(blend_pixels)(*g.columns, x, g.inner, y);
  } else {
    if (x != scratch && room < line_room(g) - line) {  // too short for vector reads in place
      std::copy_n(x, line, scratch);
      x = scratch;
      room = line_room(g);
    }
    HWY_DYNAMIC_DISPATCH(pick_columns)(*g.columns, g.nearest, x, room, y);
  }
}

// Nearest neighbours of elements that are not f32.
template <class T>
void move_row(const ResizeLines& g, int64_t row) {
  const int64_t in = g.columns == nullptr ? 1 : g.columns->in,
                out = g.columns == nullptr ? 1 : g.columns->out;
  const int64_t rows = g.rows == nullptr ? 1 : g.rows->out, high = g.rows == nullptr ? 1 : g.rows->in;
  const int64_t line = in * g.inner;
  const int64_t at = g.rows == nullptr ? 0 : g.rows->index[static_cast<size_t>(row % rows)];
  const T* x = static_cast<const T*>(g.x) + (row / rows * high + at) * line;
  T* y = static_cast<T*>(g.y) + row * out * g.inner;
  if (g.columns == nullptr) {
    std::copy_n(x, line, y);
  } else {
    pick_elements(*g.columns, x, g.inner, y);
  }
}

// A row of nearest neighbours with the same source row as the previous one is a copy of it.
bool repeats(const ResizeLines& g, int64_t row, int64_t begin) {
  if (!g.nearest || g.rows == nullptr || row == begin || row % g.rows->out == 0) return false;
  const size_t o = static_cast<size_t>(row % g.rows->out);
  return g.rows->index[o] == g.rows->index[o - 1];
}

void run_any_row(const ResizeLines& g, int64_t row, int64_t begin, float* scratch) {
  if (repeats(g, row, begin)) {
    const int64_t bytes = (g.columns == nullptr ? 1 : g.columns->out) * g.inner * g.element_bytes;
    char* y = static_cast<char*>(g.y) + row * bytes;
    std::memcpy(y, y - bytes, static_cast<size_t>(bytes));
    return;
  }
  switch (g.element_bytes) {
    case 1: return move_row<uint8_t>(g, row);
    case 2: return move_row<uint16_t>(g, row);
    case 8: return move_row<uint64_t>(g, row);
    default: return run_row(g, row, scratch);
  }
}

}  // namespace

LineAxis widened(const LineAxis& columns, int64_t inner) {
  LineAxis wide{.in = columns.in * inner,
                .out = columns.out * inner,
                .taps = columns.taps,
                .ripple = inner - 1,
                .index = {},
                .weight = {}};
  for (size_t i = 0; i < columns.index.size(); ++i) {
    for (int64_t c = 0; c < inner; ++c) {
      wide.index.push_back(static_cast<int32_t>(columns.index[i] * inner + c));
      wide.weight.push_back(columns.weight[i]);
    }
  }
  return wide;
}

int64_t resize_scratch_bytes(const ResizeLines& args) {
  return piece_count(args) * line_room(args) * static_cast<int64_t>(sizeof(float));
}

void resize_lines(const ResizeLines& args, void* scratch, base::ThreadPool& pool) {
  const int64_t rows = row_count(args), pieces = piece_count(args), room = line_room(args);
  pool.run(pieces, [&](int64_t piece) {
    float* line = static_cast<float*>(scratch) + piece * room;
    const int64_t begin = rows * piece / pieces, end = rows * (piece + 1) / pieces;
    // Vector reads past a blended row must find numbers, though the permutation ignores them.
    std::fill_n(line, room, 0.0f);
    for (int64_t row = begin; row < end; ++row) run_any_row(args, row, begin, line);
  });
}

}  // namespace trireme::cpu
#endif
