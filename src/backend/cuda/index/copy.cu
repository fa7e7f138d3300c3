// Launchers of copies, fills and padding, and how a copy is done in wide units.
#include "backend/cuda/index/copy.h"

#include <algorithm>
#include <array>

#include "backend/cuda/index/copy_kernels.h"
#include "backend/cuda/device/launch.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;

/// Calls f(T{}) with the unsigned type of this many bytes.
template <class F>
void by_size(int64_t bytes, F f) {
  switch (bytes) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
    case 16: return f(Wide{});
    default: base::fail(base::ErrorCode::internal, "elements of ", bytes, " bytes");
  }
}

Launch flat(tensor::Stream& stream, int64_t count) {
  return {blocks_for(cuda_stream(stream), (count + kThreads - 1) / kThreads, 32), kThreads};
}

/// A list of dimensions on the stack: launches must not allocate.
struct DimList {
  std::array<size_t, kCopyRank> at{};
  size_t count = 0;
  void push_back(size_t dim) { at[count++] = dim; }
  size_t size() const { return count; }
  size_t operator[](size_t i) const { return at[i]; }
};

CopyWalk walk_of(const StridedCopy& copy, const DimList& dims, int64_t below) {
  CopyWalk walk{};
  walk.rank = static_cast<int>(dims.size());
  for (size_t k = 0; k < dims.size(); ++k) {
    walk.extent[k] = Divider(copy.extent[dims[k]], below);
    walk.x_step[k] = copy.x_steps[dims[k]];
    walk.y_step[k] = copy.y_steps[dims[k]];
  }
  return walk;
}

/// The dimension in which one side's elements are contiguous; -1 if there is none with several elements.
int unit_dim(const std::vector<int64_t>& steps) {
  for (size_t d = steps.size(); d-- > 0;) {
    if (steps[d] == 1) return static_cast<int>(d);
  }
  return -1;
}

/// Drops dimensions of one element and merges neighbours that both sides traverse with even steps.
void merge(StridedCopy& c) {
  StridedCopy out = c;
  out.extent.clear();
  out.x_steps.clear();
  out.y_steps.clear();
  for (size_t d = 0; d < c.extent.size(); ++d) {
    if (c.extent[d] == 1) continue;
    const bool joins = !out.extent.empty() && out.x_steps.back() == c.x_steps[d] * c.extent[d] &&
                       out.y_steps.back() == c.y_steps[d] * c.extent[d];
    if (joins) {
      out.extent.back() *= c.extent[d];
      out.x_steps.back() = c.x_steps[d];
      out.y_steps.back() = c.y_steps[d];
    } else {
      out.extent.push_back(c.extent[d]);
      out.x_steps.push_back(c.x_steps[d]);
      out.y_steps.push_back(c.y_steps[d]);
    }
  }
  c = std::move(out);
}

/// Joins units in pairs if runs have an even length and all begin at even offsets; false otherwise.
bool pair_units(StridedCopy& c) {
  if (c.unit_bytes == 16 || c.extent.empty()) return false;
  const size_t last = c.extent.size() - 1;
  if (c.x_steps[last] != 1 || c.y_steps[last] != 1 || c.extent[last] % 2 != 0) return false;
  bool even = c.x_base % 2 == 0 && c.y_base % 2 == 0;
  for (size_t d = 0; d < last; ++d) even = even && c.x_steps[d] % 2 == 0 && c.y_steps[d] % 2 == 0;
  if (!even) return false;
  for (size_t d = 0; d < last; ++d) c.x_steps[d] /= 2, c.y_steps[d] /= 2;
  c.extent[last] /= 2;
  c.x_base /= 2;
  c.y_base /= 2;
  c.unit_bytes *= 2;
  return true;
}

template <class T>
void run_tiles(tensor::Stream& stream, const StridedCopy& c, const T* x, T* y) {
  const size_t fast = static_cast<size_t>(unit_dim(c.x_steps)),
               slow = static_cast<size_t>(unit_dim(c.y_steps));
  constexpr int64_t kTile = CopyTiles<T>::kTile;
  const int64_t across = (c.extent[fast] + kTile - 1) / kTile, down = (c.extent[slow] + kTile - 1) / kTile;
  int64_t tiles = across * down;
  DimList others;
  for (size_t d = 0; d < c.extent.size(); ++d) {
    if (d == fast || d == slow) continue;
    others.push_back(d);
    tiles *= c.extent[d];
  }
  TurnedTile<T> turned{is_whole_packs<T>(x, {c.extent[fast], c.x_steps[slow]}),
                       is_whole_packs<T>(y, {c.extent[slow], c.y_steps[fast]})};
  for (size_t k = 0; k < others.size(); ++k) {
    turned.x_packed = turned.x_packed && c.x_steps[others[k]] % kPack<T> == 0;
    turned.y_packed = turned.y_packed && c.y_steps[others[k]] % kPack<T> == 0;
  }
  launch(stream, "copy_tiles",
         {blocks_for(cuda_stream(stream), tiles, 32), turned.kThreads, turned.kSharedBytes},
         CopyTiles<T>{x, y, walk_of(c, others, tiles), tiles, Divider(down, tiles), Divider(across, tiles),
                      c.extent[slow], c.extent[fast], c.x_steps[slow], c.y_steps[fast], turned});
}

}  // namespace

StridedCopy widened(StridedCopy copy) {
  merge(copy);
  while (pair_units(copy)) merge(copy);
  return copy;
}

std::optional<std::string> refuse_copy(const StridedCopy& copy) {
  if (copy.extent.size() > kCopyRank) return "a copy along more than 8 dimensions";
  return std::nullopt;
}

void copy_strided(tensor::Stream& stream, const StridedCopy& c, const void* x, void* y) {
  const int64_t count = tensor::element_count(c.extent);
  if (count == 0) return;
  const int x_unit = unit_dim(c.x_steps), y_unit = unit_dim(c.y_steps);
  const bool crosses = x_unit >= 0 && y_unit >= 0 && x_unit != y_unit && c.unit_bytes <= 8 &&
                       c.extent[static_cast<size_t>(x_unit)] >= 8 &&
                       c.extent[static_cast<size_t>(y_unit)] >= 8;
  by_size(c.unit_bytes, [&](auto zero) {
    using T = decltype(zero);
    const T* from = static_cast<const T*>(x) + c.x_base;
    T* to = static_cast<T*>(y) + c.y_base;
    if constexpr (sizeof(T) <= 8) {
      if (crosses) return run_tiles<T>(stream, c, from, to);
    }
    DimList all;
    for (size_t d = 0; d < c.extent.size(); ++d) all.push_back(d);
    launch(stream, "copy_along", flat(stream, count), CopyAlong<T>{from, to, walk_of(c, all, count), count});
  });
}

void fill(tensor::Stream& stream, void* y, int64_t bytes, uint64_t unit, int64_t unit_bytes) {
  if (bytes == 0) return;
  for (int64_t size = unit_bytes; size < 8; size *= 2) {
    unit &= (uint64_t{1} << (8 * size)) - 1;
    unit |= unit << (8 * size);
  }
  launch(stream, "fill", flat(stream, bytes / 16 + 16),
         Fill{static_cast<Wide*>(y), {{unit, unit}}, bytes / 16, static_cast<int>(bytes % 16)});
}

void pad(tensor::Stream& stream, const PadArgs& a) {
  const int64_t count = tensor::element_count(a.y_dims);
  if (count == 0) return;
  by_size(a.unit_bytes, [&](auto zero) {
    using T = decltype(zero);
    Pad<T> kernel{};
    kernel.x = static_cast<const T*>(a.x);
    kernel.value = static_cast<const T*>(a.value);
    kernel.y = static_cast<T*>(a.y);
    kernel.rank = static_cast<int>(a.y_dims.size());
    for (size_t d = 0; d < a.y_dims.size(); ++d) {
      kernel.y_extent[d] = Divider(a.y_dims[d], count);
      kernel.x_extent[d] = a.x_dims[d];
      kernel.before[d] = a.before[d];
    }
    kernel.mode = a.mode;
    kernel.count = count;
    launch(stream, "pad", flat(stream, count), kernel);
  });
}

}  // namespace trireme::cuda
