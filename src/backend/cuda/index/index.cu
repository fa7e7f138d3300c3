// Launchers of lookups by index and their gradients.
#include "backend/cuda/index/index.h"

#include <algorithm>

#include "backend/cuda/index/copy_kernels.h"
#include "backend/cuda/index/index_grad_kernels.h"
#include "backend/cuda/device/launch.h"
#include "backend/cuda/index/scatter_kernels.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;

template <class F>
void by_size(int64_t bytes, F f) {
  switch (bytes) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
    default: return f(Wide{});
  }
}

Launch flat(tensor::Stream& stream, int64_t count) {
  return {blocks_for(cuda_stream(stream), (count + kThreads - 1) / kThreads, 32), kThreads};
}

template <class T>
void run_grad(On on, const GatherGrad& a, const void* dy, void* dx, void* workspace) {
  auto* keys = static_cast<uint64_t*>(workspace);
  const int64_t padded = sorted_length(a.count);
  launch(on.stream, "sort_keys", flat(on.stream, padded), SortKeys{a.at, keys, a.count, padded, a.padding});
  sort_keys(on.stream, keys, padded);
  constexpr int kColumns = SumRuns<T>::kColumns;
  const int64_t across = (a.slice + kColumns - 1) / kColumns;
  launch(on.stream, "sum_runs",
         {blocks_for(cuda_stream(on.stream), a.outer * a.count * across, 64), kColumns},
         SumRuns<T>{keys, static_cast<const T*>(dy), static_cast<T*>(dx), a.outer, a.count, a.slice,
                    a.at.rows, across});
}

IndexedPlaces places_of(const IndexedMove& m, int64_t items) {
  IndexedPlaces p{};
  p.at = m.at;
  p.rank = static_cast<int>(m.extent.size());
  p.axis_step = m.axis_step;
  for (size_t d = 0; d < m.extent.size(); ++d) {
    p.extent[d] = Divider(m.extent[d], items);
    p.steps[d] = m.steps[d];
  }
  p.depth = static_cast<int>(m.tuple_extent.size());
  std::copy(m.tuple_extent.begin(), m.tuple_extent.end(), p.tuple_extent);
  std::copy(m.tuple_step.begin(), m.tuple_step.end(), p.tuple_step);
  p.tuples = std::max<int64_t>(1, m.tuples);
  p.block = m.block;
  return p;
}

void gather(tensor::Stream& stream, const IndexedMove& m, int64_t items, const void* x, void* y) {
  const int64_t total = items * m.slice;
  if (total == 0) return;
  by_size(m.unit_bytes, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, "gather_places", flat(stream, total),
           GatherPlaces<T>{places_of(m, items), static_cast<const T*>(x), static_cast<T*>(y),
                           Divider(m.slice, total), total});
  });
}

void scatter(tensor::Stream& stream, const IndexedMove& m, int64_t items, const ScatterTarget& to) {
  const int64_t total = items * m.slice;
  if (total == 0 || to.elements == 0) return;
  auto* winner = static_cast<int64_t*>(to.workspace);
  fill_zero(stream, winner, scatter_workspace_bytes(to.elements / m.slice));
  const IndexedPlaces places = places_of(m, items);
  launch(stream, "find_winners", flat(stream, items), FindWinners{places, winner, items, m.slice});
  by_size(m.unit_bytes, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, "write_winners", flat(stream, total),
           WriteWinners<T>{places, winner, static_cast<const T*>(to.updates), static_cast<T*>(to.y),
                           Divider(m.slice, std::max(total, to.elements)), total});
  });
}

int64_t updates_of(const IndexedMove& m, bool tuples) {
  return tuples ? m.tuples : tensor::element_count(m.extent);
}

template <class F>
void by_number(tensor::DType dtype, F f) {
  switch (dtype) {
    case tensor::DType::f32: return f(float{});
    case tensor::DType::f16: return f(Half{});
    case tensor::DType::bf16: return f(BFloat16{});
    case tensor::DType::f64: return f(double{});
    case tensor::DType::i32: return f(int32_t{});
    case tensor::DType::i64: return f(int64_t{});
    default: base::fail(base::ErrorCode::internal, "no joined updates of ", name_of(dtype));
  }
}

}  // namespace

int64_t sorted_length(int64_t n) {
  int64_t p = BitonicPass::kChunk;
  while (p < n) p *= 2;
  return p;
}

void sort_keys(tensor::Stream& stream, uint64_t* keys, int64_t n) {
  using Pass = BitonicPass;
  const auto& queue = cuda_stream(stream);
  const Launch chunks{blocks_for(queue, n / Pass::kChunk, 32), Pass::kThreads, Pass::kSharedBytes};
  const Launch pairs{blocks_for(queue, n / 2 / Pass::kThreads, 32), Pass::kThreads};
  launch(stream, "sort_chunks", chunks, Pass{keys, n, Pass::kChunk, 1, 2});
  for (int64_t size = 2 * Pass::kChunk; size <= n; size *= 2) {
    int64_t distance = size / 2;
    for (; distance >= Pass::kChunk; distance /= 2)
      launch(stream, "sort_pairs", pairs, Pass{keys, n, size, distance, 0});
    launch(stream, "sort_chunks", chunks, Pass{keys, n, size, distance, 0});
  }
}

void gather_slices(tensor::Stream& stream, const GatherSlices& a, const void* x, void* y) {
  const int64_t bytes = a.outer * a.count * a.slice_bytes;
  if (bytes == 0) return;
  int64_t unit = 16;
  while (a.slice_bytes % unit != 0) unit /= 2;
  by_size(unit, [&](auto zero) {
    using T = decltype(zero);
    const int64_t total = bytes / unit;
    launch(stream, "gather_slices", flat(stream, total),
           GatherUnits<T>{a.at, static_cast<const T*>(x), static_cast<T*>(y),
                          Divider(a.slice_bytes / unit, total), Divider(a.count, total), total});
  });
}

int64_t gather_grad_workspace_bytes(int64_t count) {
  return sorted_length(count) * static_cast<int64_t>(sizeof(uint64_t));
}

void gather_grad(On on, const GatherGrad& a, const void* dy, void* dx, void* workspace) {
  const int64_t bytes = tensor::bytes_of(on.dtype, a.outer * a.at.rows * a.slice);
  if (bytes == 0) return;
  if (a.base == nullptr) fill_zero(on.stream, dx, bytes);
  if (a.base != nullptr && a.base != dx) {
    const StridedCopy whole = widened({{bytes}, {1}, {1}, 0, 0, 1});
    copy_strided(on.stream, whole, a.base, dx);
  }
  if (a.count == 0) return;
  switch (on.dtype) {
    case tensor::DType::f32: return run_grad<float>(on, a, dy, dx, workspace);
    case tensor::DType::f16: return run_grad<Half>(on, a, dy, dx, workspace);
    case tensor::DType::bf16: return run_grad<BFloat16>(on, a, dy, dx, workspace);
    case tensor::DType::f64: return run_grad<double>(on, a, dy, dx, workspace);
    default: base::fail(base::ErrorCode::internal, "no sums of ", name_of(on.dtype), " by index");
  }
}

void gather_elements(tensor::Stream& stream, const IndexedMove& m, const void* x, void* y) {
  gather(stream, m, tensor::element_count(m.extent), x, y);
}
void gather_tuples(tensor::Stream& stream, const IndexedMove& m, const void* x, void* y) {
  gather(stream, m, m.batches * m.tuples, x, y);
}

int64_t scatter_workspace_bytes(int64_t slices) { return slices * static_cast<int64_t>(sizeof(int64_t)); }

void scatter_elements(tensor::Stream& stream, const IndexedMove& m, const ScatterTarget& to) {
  scatter(stream, m, tensor::element_count(m.extent), to);
}
void scatter_tuples(tensor::Stream& stream, const IndexedMove& m, const ScatterTarget& to) {
  scatter(stream, m, m.tuples, to);
}

int64_t scatter_join_workspace_bytes(const IndexedMove& m, bool tuples) {
  return sorted_length(updates_of(m, tuples)) * static_cast<int64_t>(sizeof(uint64_t));
}

void scatter_joined(On on, const IndexedMove& m, bool tuples, ScatterJoin join, const ScatterTarget& to) {
  const int64_t items = updates_of(m, tuples), total = items * m.slice, padded = sorted_length(items);
  if (total == 0 || to.elements == 0) return;
  auto* keys = static_cast<uint64_t*>(to.workspace);
  launch(on.stream, "scatter_keys", flat(on.stream, padded),
         ScatterKeys{places_of(m, items), keys, items, m.slice, padded});
  sort_keys(on.stream, keys, padded);
  by_number(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "join_runs", flat(on.stream, total),
           JoinRuns<T>{keys, static_cast<const T*>(to.updates), static_cast<T*>(to.y),
                       Divider(m.slice, total), items, total, join});
  });
}

}  // namespace trireme::cuda
