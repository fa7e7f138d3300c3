// Strided copies: axes are merged, then one of three inner loops does the rest: memcpy, tile transpose,
// single elements.
#include "backend/cpu/move/transpose_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "backend/cpu/move/transpose_tile.h"
#include "backend/cpu/move/weave_bytes.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

using base::require;

struct Axis {
  int64_t n, xs, ys;  // extent and strides in elements
};

// A copy after merging: axes are ordered outermost first, strides count elements of `bytes`.
struct Plan {
  const char* x;
  char* y;
  std::array<Axis, kCopyMaxRank> axes;
  int rank = 0;
  int bytes = 0;

  int64_t outer_count(int inner) const {
    int64_t count = 1;
    for (int i = 0; i < rank - inner; ++i) count *= axes[static_cast<size_t>(i)].n;
    return count;
  }
};

// Drops axes of extent 1 and merges neighbouring axes that can be traversed as one.
Plan plan_of(const StridedCopy& g) {
  Plan p{static_cast<const char*>(g.x), static_cast<char*>(g.y), {}, 0, g.element_bytes};
  for (size_t i = 0; i < g.shape.size(); ++i) {
    const Axis a = {g.shape[i], g.x_strides[i], g.y_strides[i]};
    if (a.n == 1) continue;
    Axis* last = p.rank > 0 ? &p.axes[static_cast<size_t>(p.rank - 1)] : nullptr;
    if (last != nullptr && last->xs == a.xs * a.n && last->ys == a.ys * a.n) {
      *last = {last->n * a.n, a.xs, a.ys};
    } else {
      p.axes[static_cast<size_t>(p.rank++)] = a;
    }
  }
  if (p.rank == 0) p.axes[static_cast<size_t>(p.rank++)] = {1, 1, 1};
  return p;
}

// Turns a short contiguous innermost run into one wider element: [h, w, 2] of f32 becomes [h, w] of 8 bytes.
void widen(Plan& p) {
  const Axis last = p.axes[static_cast<size_t>(p.rank - 1)];
  const int64_t bytes = last.n * p.bytes;
  if (p.rank < 2 || last.xs != 1 || last.ys != 1 || bytes > 16 || (bytes & (bytes - 1)) != 0) return;
  for (int i = 0; i + 1 < p.rank; ++i) {
    const Axis& a = p.axes[static_cast<size_t>(i)];
    if (a.xs % last.n != 0 || a.ys % last.n != 0) return;
  }
  --p.rank;
  for (int i = 0; i < p.rank; ++i) {
    Axis& a = p.axes[static_cast<size_t>(i)];
    a.xs /= last.n;
    a.ys /= last.n;
  }
  p.bytes = static_cast<int>(bytes);
}

struct Offset {
  int64_t x, y;  // bytes
};

// Offsets of index t of the outer axes [0, rank - inner).
Offset offset_of(const Plan& p, int inner, int64_t t) {
  Offset at = {0, 0};
  for (int i = p.rank - inner - 1; i >= 0; --i) {
    const Axis& a = p.axes[static_cast<size_t>(i)];
    const int64_t k = t % a.n;
    t /= a.n;
    at.x += k * a.xs;
    at.y += k * a.ys;
  }
  return {at.x * p.bytes, at.y * p.bytes};
}

// Larger results leave the caches before anyone reads them.
constexpr int64_t kStreamBytes = 16 << 20;

// Items per piece, so that a piece moves about 64 KiB.
int64_t grain_of(int64_t bytes) { return std::max<int64_t>(1, 65536 / std::max<int64_t>(1, bytes)); }

// Visits the outer indices of a plan one after the other.
class Walk {
 public:
  Walk(const Plan& p, int inner, int64_t first)
      : plan_(p), axes_(p.rank - inner), at_(offset_of(p, inner, first)) {
    for (int i = axes_ - 1; i >= 0; --i) {
      index_[static_cast<size_t>(i)] = first % p.axes[static_cast<size_t>(i)].n;
      first /= p.axes[static_cast<size_t>(i)].n;
    }
  }
  Offset at() const { return at_; }
  void next() {
    for (int i = axes_ - 1; i >= 0; --i) {
      const Axis& a = plan_.axes[static_cast<size_t>(i)];
      int64_t& k = index_[static_cast<size_t>(i)];
      at_.x += a.xs * plan_.bytes;
      at_.y += a.ys * plan_.bytes;
      if (++k < a.n) return;
      k = 0;
      at_.x -= a.n * a.xs * plan_.bytes;
      at_.y -= a.n * a.ys * plan_.bytes;
    }
  }

 private:
  const Plan& plan_;
  int axes_;
  Offset at_;
  std::array<int64_t, kCopyMaxRank> index_{};
};

// `count` lines along the last axis at even distances; steps are in bytes.
struct Lines {
  const char* x;
  char* y;
  int64_t count, x_step, y_step;
};

// Calls body(lines) for all lines, in parts that make a piece at about `line_bytes` per line.
template <class Body>
void for_lines(const Plan& p, int64_t line_bytes, base::ThreadPool& pool, const Body& body) {
  const Axis even = p.rank > 1 ? p.axes[static_cast<size_t>(p.rank - 2)] : Axis{1, 0, 0};
  const int inner = std::min(p.rank, 2);
  const int64_t cut = std::min(grain_of(line_bytes), std::max<int64_t>(1, even.n));
  const int64_t cuts = (even.n + cut - 1) / cut;
  pool.for_range(p.outer_count(inner) * cuts, grain_of(cut * line_bytes), [&](int64_t begin, int64_t end) {
    Walk walk(p, inner, begin / cuts);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t from = t % cuts * cut;
      body(Lines{p.x + walk.at().x + from * even.xs * p.bytes, p.y + walk.at().y + from * even.ys * p.bytes,
                 std::min(cut, even.n - from), even.xs * p.bytes, even.ys * p.bytes});
      if (t % cuts == cuts - 1) walk.next();
    }
  });
}

template <class Word>
void move_ends(const char* x, char* y, int64_t n) {
  Word first, last;
  std::memcpy(&first, x, sizeof(Word));
  std::memcpy(&last, x + n - sizeof(Word), sizeof(Word));
  std::memcpy(y, &first, sizeof(Word));
  std::memcpy(y + n - sizeof(Word), &last, sizeof(Word));
}

struct Half16 {
  uint64_t words[2];
};
struct Half32 {
  Half16 words[2];
};

// Copies short runs of equal length with two words each, which may overlap, instead of calling memcpy.
void copy_short_runs(const Lines& g, int64_t run) {
  const auto each = [&](const auto& move) {
    for (int64_t i = 0; i < g.count; ++i) move(g.x + i * g.x_step, g.y + i * g.y_step);
  };
  if (run >= 32) {
    each([run](const char* x, char* y) { move_ends<Half32>(x, y, run); });
  } else if (run >= 16) {
    each([run](const char* x, char* y) { move_ends<Half16>(x, y, run); });
  } else if (run >= 8) {
    each([run](const char* x, char* y) { move_ends<uint64_t>(x, y, run); });
  } else if (run >= 4) {
    each([run](const char* x, char* y) { move_ends<uint32_t>(x, y, run); });
  } else {
    each([run](const char* x, char* y) {
      for (int64_t i = 0; i < run; ++i) y[i] = x[i];
    });
  }
}

void copy_runs(const Plan& p, base::ThreadPool& pool) {
  const int64_t run = p.axes[static_cast<size_t>(p.rank - 1)].n * p.bytes;
  if (run <= 64) return for_lines(p, run, pool, [run](const Lines& g) { copy_short_runs(g, run); });
  constexpr int64_t kCut = 262144;
  if (run <= kCut) {
    return for_lines(p, run, pool, [run](const Lines& g) {
      for (int64_t i = 0; i < g.count; ++i)
        std::memcpy(g.y + i * g.y_step, g.x + i * g.x_step, static_cast<size_t>(run));
    });
  }
  // Long runs are cut, so that a single one (a plain copy) still occupies the whole team.
  const int64_t cuts = (run + kCut - 1) / kCut;
  pool.for_range(p.outer_count(1) * cuts, grain_of(kCut), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Offset at = offset_of(p, 1, t / cuts);
      const int64_t from = t % cuts * kCut;
      std::memcpy(p.y + at.y + from, p.x + at.x + from, static_cast<size_t>(std::min(kCut, run - from)));
    }
  });
}

// The last axis is contiguous in y; the axis before it is contiguous in x: see `copy_strided`.
void copy_transposed(const Plan& p, base::ThreadPool& pool) {
  const Axis cols = p.axes[static_cast<size_t>(p.rank - 2)], rows = p.axes[static_cast<size_t>(p.rank - 1)];
  // Tiles are eight cache lines wide and high: long runs within memory pages, small enough for L2.
  const int64_t strip = std::max<int64_t>(1, 512 / p.bytes);
  const int64_t span = strip;
  const int64_t row_strips = (rows.n + strip - 1) / strip, col_spans = (cols.n + span - 1) / span;
  const int64_t tiles = p.outer_count(2) * row_strips * col_spans;
  const bool stream = p.outer_count(0) * p.bytes > kStreamBytes;
  const int64_t tile_bytes = std::min(strip, rows.n) * std::min(span, cols.n) * p.bytes;
  pool.for_range(tiles, grain_of(tile_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Offset at = offset_of(p, 2, t / (row_strips * col_spans));
      const int64_t r = t / col_spans % row_strips * strip, c = t % col_spans * span;
      const TransposeTile tile = {p.x + at.x + (r * rows.xs + c) * p.bytes, rows.xs,
                                  p.y + at.y + (c * cols.ys + r) * p.bytes, cols.ys, stream};
      transpose_tile(tile, std::min(strip, rows.n - r), std::min(span, cols.n - c), p.bytes);
    }
  });
}

struct WidePixel {
  uint64_t half[2];
};

// Interleaves two to four planes into pixels: y[c * N + r] = x[r * plane + c].
template <class T, int N>
void weave(const char* x, int64_t plane, char* y, int64_t pixels) {
  const T* from = reinterpret_cast<const T*>(x);
  T* to = reinterpret_cast<T*>(y);
  for (int64_t c = 0; c < pixels; ++c) {
    for (int r = 0; r < N; ++r) to[c * N + r] = from[r * plane + c];
  }
}

void weave_colours(const char* x, int64_t plane, char* y, int64_t pixels) {
  weave_bytes3(reinterpret_cast<const uint8_t*>(x), plane, reinterpret_cast<uint8_t*>(y), pixels);
}

template <class T>
auto weave_of(int64_t planes) {
  return planes == 2 ? weave<T, 2> : planes == 3 ? weave<T, 3> : weave<T, 4>;
}

// A transpose with so few rows that tiles would be nearly empty, as in the layout change of colour images.
bool is_woven(const Plan& p) {
  const Axis cols = p.axes[static_cast<size_t>(p.rank - 2)], rows = p.axes[static_cast<size_t>(p.rank - 1)];
  return rows.n >= 2 && rows.n <= 4 && cols.ys == rows.n && cols.xs == 1 && p.bytes <= 4;
}

void copy_woven(const Plan& p, base::ThreadPool& pool) {
  const Axis cols = p.axes[static_cast<size_t>(p.rank - 2)], rows = p.axes[static_cast<size_t>(p.rank - 1)];
  const auto weave_planes = p.bytes == 1 && rows.n == 3 ? weave_colours
                            : p.bytes == 1              ? weave_of<uint8_t>(rows.n)
                            : p.bytes == 2              ? weave_of<uint16_t>(rows.n)
                                                        : weave_of<uint32_t>(rows.n);
  constexpr int64_t kPixels = 8192;
  const int64_t cuts = (cols.n + kPixels - 1) / kPixels;
  pool.for_range(p.outer_count(2) * cuts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Offset at = offset_of(p, 2, t / cuts);
      const int64_t c = t % cuts * kPixels;
      weave_planes(p.x + at.x + c * p.bytes, rows.xs, p.y + at.y + c * rows.n * p.bytes,
                   std::min(kPixels, cols.n - c));
    }
  });
}

// kStep 0 stands for any step.
template <class T, int kStep>
void copy_steps(const T* from, T* to, int64_t n, int64_t step) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i * (kStep != 0 ? kStep : step)];
}

template <class T>
void copy_line(const char* x, char* y, const Axis& a) {
  const T* from = reinterpret_cast<const T*>(x);
  T* to = reinterpret_cast<T*>(y);
  if (a.ys == 1) {
    switch (a.xs) {
      case 0: std::fill_n(to, a.n, *from); return;
      case 2: return copy_steps<T, 2>(from, to, a.n, 2);
      case -1: return copy_steps<T, -1>(from, to, a.n, -1);
      default: return copy_steps<T, 0>(from, to, a.n, a.xs);
    }
  }
  for (int64_t i = 0; i < a.n; ++i) to[i * a.ys] = from[i * a.xs];
}

template <class T>
void copy_lines(const Lines& g, const Axis& a) {
  for (int64_t i = 0; i < g.count; ++i) copy_line<T>(g.x + i * g.x_step, g.y + i * g.y_step, a);
}

void copy_elements(const Plan& p, base::ThreadPool& pool) {
  const Axis& line = p.axes[static_cast<size_t>(p.rank - 1)];
  const auto copy = p.bytes == 1   ? copy_lines<uint8_t>
                    : p.bytes == 2 ? copy_lines<uint16_t>
                    : p.bytes == 4 ? copy_lines<uint32_t>
                    : p.bytes == 8 ? copy_lines<uint64_t>
                                   : copy_lines<WidePixel>;
  for_lines(p, line.n * p.bytes * 2, pool, [&](const Lines& g) { copy(g, line); });
}

// Moves the axis that is contiguous in x next to the last one. Returns false if there is none.
bool pair_axes(Plan& p) {
  const auto end = p.axes.begin() + p.rank;
  if ((end - 1)->ys != 1) return false;
  const auto found = std::find_if(p.axes.begin(), end - 1, [](const Axis& a) { return a.xs == 1; });
  if (found == end - 1) return false;
  std::rotate(found, found + 1, end - 1);
  return true;
}

}  // namespace

void copy_strided(const StridedCopy& args, base::ThreadPool& pool) {
  const int b = args.element_bytes;
  require(b == 1 || b == 2 || b == 4 || b == 8 || b == 16,
          "copy needs elements of 1, 2, 4, 8 or 16 bytes, got ", b);
  require(args.shape.size() <= static_cast<size_t>(kCopyMaxRank), "copy supports rank up to ", kCopyMaxRank,
          ", got ", args.shape.size());
  for (int64_t n : args.shape) {
    if (n <= 0) return;
  }
  Plan p = plan_of(args);
  widen(p);
  const Axis& last = p.axes[static_cast<size_t>(p.rank - 1)];
  if (last.xs == 1 && last.ys == 1) return copy_runs(p, pool);
  if (p.rank >= 2 && pair_axes(p)) return is_woven(p) ? copy_woven(p, pool) : copy_transposed(p, pool);
  copy_elements(p, pool);
}

void permute(const Permute& args, base::ThreadPool& pool) {
  const size_t rank = args.shape.size();
  require(rank <= static_cast<size_t>(kCopyMaxRank) && args.order.size() == rank,
          "permute needs one order entry per axis: ", args.order.size(), " of ", rank);
  std::array<int64_t, kCopyMaxRank> dense{}, shape{}, xs{}, ys{};
  for (size_t i = rank, step = 1; i-- > 0;) {
    dense[i] = static_cast<int64_t>(step);
    step *= static_cast<size_t>(args.shape[i]);
  }
  uint32_t seen = 0;
  for (size_t i = rank, step = 1; i-- > 0;) {
    const int from = args.order[i];
    require(from >= 0 && from < static_cast<int>(rank) && (seen >> from & 1) == 0,
            "permute order is no permutation");
    seen |= 1u << from;
    shape[i] = args.shape[static_cast<size_t>(from)];
    xs[i] = dense[static_cast<size_t>(from)];
    ys[i] = static_cast<int64_t>(step);
    step *= static_cast<size_t>(shape[i]);
  }
  copy_strided(
      {args.x, args.y, {shape.data(), rank}, {xs.data(), rank}, {ys.data(), rank}, args.element_bytes}, pool);
}

namespace {

// The source index for each result index of one axis; -1 where the padding constant goes.
std::vector<int64_t> source_indices(const Pad& g, size_t axis) {
  const int64_t n = g.shape[axis], size = n + g.before[axis] + g.after[axis];
  require(size >= 0, "pad cuts more than axis ", axis, " holds: ", size);
  require(g.mode == PadMode::constant || n > 0 || size == 0, "pad needs elements to repeat along axis ",
          axis);
  std::vector<int64_t> source(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    int64_t k = i - g.before[axis];
    if (k < 0 || k >= n) {
      const int64_t period = 2 * (n - 1);
      switch (g.mode) {
        case PadMode::constant: k = -1; break;
        case PadMode::edge: k = std::clamp<int64_t>(k, 0, n - 1); break;
        case PadMode::wrap: k = ((k % n) + n) % n; break;
        case PadMode::reflect:
          k = n == 1 ? 0 : ((k % period) + period) % period;
          if (k >= n) k = period - k;
          break;
      }
    }
    source[static_cast<size_t>(i)] = k;
  }
  return source;
}

struct PadPlan {
  std::vector<std::vector<int64_t>> source;  // per axis
  std::vector<int64_t> x_stride;             // per axis, elements
  int64_t first = 0, last = 0;               // innermost result indices [first, last) are one run of x
};

template <class T>
void pad_line(const Pad& g, const PadPlan& plan, const T* x, T* y) {
  const std::vector<int64_t>& source = plan.source.back();
  T value{};
  if (g.value != nullptr) std::memcpy(&value, g.value, sizeof(T));
  const auto pick = [&](int64_t i) {
    const int64_t k = source[static_cast<size_t>(i)];
    y[i] = x == nullptr || k < 0 ? value : x[k];
  };
  const int64_t size = static_cast<int64_t>(source.size());
  for (int64_t i = 0; i < plan.first; ++i) pick(i);
  if (x == nullptr)
    std::fill(y + plan.first, y + plan.last, value);
  else if (plan.last > plan.first)
    std::copy_n(x + source[static_cast<size_t>(plan.first)], plan.last - plan.first, y + plan.first);
  for (int64_t i = plan.last; i < size; ++i) pick(i);
}

template <class T>
void pad_typed(const Pad& g, const PadPlan& plan, base::ThreadPool& pool) {
  const size_t rank = g.shape.size();
  const int64_t size = static_cast<int64_t>(plan.source.back().size());
  int64_t lines = 1;
  for (size_t i = 0; i + 1 < rank; ++i) lines *= static_cast<int64_t>(plan.source[i].size());
  if (size == 0) return;
  pool.for_range(lines, grain_of(size * static_cast<int64_t>(sizeof(T))), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      int64_t rest = t, at = 0;
      bool inside = true;
      for (size_t i = rank - 1; i-- > 0;) {
        const int64_t extent = static_cast<int64_t>(plan.source[i].size());
        const int64_t k = plan.source[i][static_cast<size_t>(rest % extent)];
        rest /= extent;
        inside &= k >= 0;
        at += k * plan.x_stride[i];
      }
      pad_line(g, plan, inside ? static_cast<const T*>(g.x) + at : nullptr, static_cast<T*>(g.y) + t * size);
    }
  });
}

}  // namespace

void pad(const Pad& args, base::ThreadPool& pool) {
  const size_t rank = args.shape.size();
  require(rank >= 1 && args.before.size() == rank && args.after.size() == rank,
          "pad needs one count before and after each axis");
  PadPlan plan;
  plan.x_stride.assign(rank, 1);
  for (size_t i = rank - 1; i-- > 0;) plan.x_stride[i] = plan.x_stride[i + 1] * args.shape[i + 1];
  for (size_t i = 0; i < rank; ++i) plan.source.push_back(source_indices(args, i));
  const int64_t size = static_cast<int64_t>(plan.source.back().size());
  plan.first = std::clamp<int64_t>(args.before[rank - 1], 0, size);
  plan.last = std::clamp<int64_t>(args.before[rank - 1] + args.shape[rank - 1], plan.first, size);
  switch (args.element_bytes) {
    case 1: return pad_typed<uint8_t>(args, plan, pool);
    case 2: return pad_typed<uint16_t>(args, plan, pool);
    case 4: return pad_typed<uint32_t>(args, plan, pool);
    case 8: return pad_typed<uint64_t>(args, plan, pool);
    default: base::fail_invalid("pad needs elements of 1, 2, 4 or 8 bytes, got ", args.element_bytes);
  }
}

}  // namespace trireme::cpu
