// Launchers of reductions and scans, and how the terms of a reduction are divided among blocks.
#include "backend/cuda/norm/reduce.h"

#include "backend/cuda/device/launch.h"
#include "backend/cuda/norm/reduce_column_kernels.h"
#include "backend/cuda/norm/scan_kernels.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;

template <class F>
void by_type(tensor::DType dtype, F f) {
  using tensor::DType;
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f16: return f(Half{});
    case DType::bf16: return f(BFloat16{});
    case DType::f64: return f(double{});
    case DType::i32: return f(int32_t{});
    case DType::i64: return f(int64_t{});
    default: base::fail(base::ErrorCode::internal, "no reduction of ", name_of(dtype), " on the device");
  }
}

bool is_taken(tensor::DType t) {
  using tensor::DType;
  return t == DType::f32 || t == DType::f16 || t == DType::bf16 || t == DType::f64 || t == DType::i32 ||
         t == DType::i64;
}

ReduceWalk walk_of(const std::vector<int64_t>& extents, const std::vector<int64_t>& steps, size_t rank,
                   int64_t below) {
  ReduceWalk walk{};
  walk.rank = static_cast<int>(rank);
  for (size_t d = 0; d < rank; ++d) {
    walk.extent[d] = Divider(extents[d], below);
    walk.step[d] = steps[d];
  }
  return walk;
}

/// Whether vector loads apply: results begin and pieces end at multiples of `pack` elements.
bool is_packed(const ReducePlan& p, int64_t pack) {
  for (int64_t s : p.kept_steps) {
    if (s % pack != 0) return false;
  }
  return p.gone.size() == 1 && p.gone_steps[0] == 1 && p.terms % pack == 0;
}

constexpr int64_t kShort = 1024;        // terms that one warp reduces
constexpr int64_t kPieceQuantum = 256;  // pieces are multiples of this many terms, hence whole packs

int64_t piece_of(const ReducePlan& p) {
  const int64_t even = (p.terms + p.pieces - 1) / p.pieces;
  return p.pieces == 1 ? std::max<int64_t>(1, p.terms)
                       : (even + kPieceQuantum - 1) / kPieceQuantum * kPieceQuantum;
}

template <class T, class Join>
void run_rows(On on, const ReducePlan& p, const T* x, T* y, Total<T>* parts) {
  const ReduceEnds ends{p.term, p.finish, p.terms};
  const bool by_warp = p.pieces == 1 && p.terms <= kShort;
  const int64_t items = p.results * p.pieces, a_block = by_warp ? kThreads / kWarp : 1;
  launch(on.stream, "reduce_rows",
         {blocks_for(cuda_stream(on.stream), (items + a_block - 1) / a_block, 32), kThreads,
          kReduceScratchBytes},
         ReduceRows<T, Join>{x, y, parts, walk_of(p.kept, p.kept_steps, p.kept.size(), p.results),
                             walk_of(p.gone, p.gone_steps, p.gone.size(), p.terms), ends, p.results, p.pieces,
                             piece_of(p), is_packed(p, kPack<T>), by_warp});
  if (p.pieces == 1) return;
  launch(on.stream, "join_pieces", {blocks_for(cuda_stream(on.stream), (p.results + 7) / 8), kThreads},
         JoinPieces<T, Join>{parts, y, ends, p.results, p.pieces, true});
}

template <class T, class Join, int kWide>
void run_columns(On on, const ReducePlan& p, const T* x, T* y, Total<T>* parts) {
  using Kernel = ReduceColumns<T, Join, kWide>;
  const ReduceEnds ends{p.term, p.finish, p.terms};
  const int64_t across = (p.columns + kWarp * kWide - 1) / (kWarp * kWide);
  launch(on.stream, "reduce_columns",
         {blocks_for(cuda_stream(on.stream), p.results / p.columns * across * p.pieces, 32), Kernel::kThreads,
          Kernel::kSharedBytes},
         Kernel{x, y, parts, walk_of(p.kept, p.kept_steps, p.kept.size() - 1, p.results),
                walk_of(p.gone, p.gone_steps, p.gone.size(), p.terms), ends, p.results, p.columns, p.pieces,
                piece_of(p)});
  if (p.pieces == 1) return;
  launch(on.stream, "join_pieces",
         {blocks_for(cuda_stream(on.stream), (p.results + kThreads - 1) / kThreads), kThreads},
         JoinPieces<T, Join>{parts, y, ends, p.results, p.pieces, false});
}

template <class T, template <class> class Join>
void run(On on, const ReducePlan& p, const void* x, void* y, void* parts) {
  using J = Join<Total<T>>;
  const T* from = static_cast<const T*>(x);
  T* to = static_cast<T*>(y);
  auto* pieces = static_cast<Total<T>*>(parts);
  if (!p.by_columns) return run_rows<T, J>(on, p, from, to, pieces);
  constexpr int kWide = kPack<T>;
  bool whole = p.columns % kWide == 0;
  for (const auto* steps : {&p.kept_steps, &p.gone_steps}) {
    for (int64_t s : *steps) whole = whole && (s == 1 || s % kWide == 0);
  }
  whole ? run_columns<T, J, kWide>(on, p, from, to, pieces) : run_columns<T, J, 1>(on, p, from, to, pieces);
}

void append(std::vector<int64_t>& extents, std::vector<int64_t>& steps, int64_t extent, int64_t step) {
  if (!extents.empty() && steps.back() == step * extent) {
    extents.back() *= extent;
    steps.back() = step;
  } else {
    extents.push_back(extent);
    steps.push_back(step);
  }
}

}  // namespace

ReducePlan plan_reduce(const tensor::Dims& dims, const std::vector<bool>& reduced) {
  ReducePlan p;
  int64_t step = 1;
  std::vector<int64_t> steps(dims.size());
  for (size_t d = dims.size(); d-- > 0; step *= dims[d]) steps[d] = step;
  for (size_t d = 0; d < dims.size(); ++d) {
    (reduced[d] ? p.terms : p.results) *= dims[d];
    if (dims[d] == 1) continue;
    reduced[d] ? append(p.gone, p.gone_steps, dims[d], steps[d])
               : append(p.kept, p.kept_steps, dims[d], steps[d]);
  }
  p.by_columns = !p.kept.empty() && p.kept_steps.back() == 1;
  if (p.by_columns) p.columns = p.kept.back();
  // Enough pieces to give about a thousand blocks work, but none smaller than the work of one block.
  constexpr int64_t kBlocks = 1024;
  const int64_t blocks =
      p.by_columns ? p.results / std::max<int64_t>(1, p.columns) * ((p.columns + 127) / 128) : p.results;
  const int64_t least = p.by_columns ? 128 : 8192;
  const int64_t wanted = std::min(kBlocks / std::max<int64_t>(1, blocks), p.terms / least);
  p.pieces = std::max<int64_t>(1, wanted);
  if (p.pieces > 1) p.pieces = (p.terms + piece_of(p) - 1) / piece_of(p);
  return p;
}

std::optional<std::string> refuse_reduce(const ReducePlan& p, tensor::DType dtype) {
  if (!is_taken(dtype)) return base::concat("the device does not reduce ", name_of(dtype));
  if (p.kept.size() > kReduceRank || p.gone.size() > kReduceRank) return "more than 6 dimensions in turns";
  return std::nullopt;
}

int64_t reduce_workspace_bytes(const ReducePlan& p, tensor::DType) {
  return p.pieces == 1 ? 0 : p.pieces * p.results * static_cast<int64_t>(sizeof(double));
}

void reduce(On on, const ReducePlan& p, const void* x, void* y, void* workspace) {
  if (p.results == 0) return;
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    switch (p.join) {
      case ReduceJoin::sum: return run<T, JoinSum>(on, p, x, y, workspace);
      case ReduceJoin::product: return run<T, JoinProduct>(on, p, x, y, workspace);
      case ReduceJoin::max: return run<T, JoinMax>(on, p, x, y, workspace);
      case ReduceJoin::min: return run<T, JoinMin>(on, p, x, y, workspace);
    }
  });
}

void arg_extreme(On on, const AlongArgs& a, bool is_max, bool takes_last) {
  if (a.outer * a.inner == 0) return;
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool by_warp = a.inner == 1;
    const int64_t a_block = by_warp ? kThreads / kWarp : kThreads;
    launch(on.stream, "arg_extreme",
           {blocks_for(cuda_stream(on.stream), (a.outer * a.inner + a_block - 1) / a_block, 32), kThreads},
           ArgExtreme<T>{static_cast<const T*>(a.x), static_cast<int64_t*>(a.y), a.outer, a.n, a.inner,
                         is_max, takes_last, by_warp});
  });
}

void scan(On on, const AlongArgs& a, const ScanRule& rule) {
  if (a.outer * a.n * a.inner == 0) return;
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = static_cast<const T*>(a.x);
    T* y = static_cast<T*>(a.y);
    if (a.inner == 1) {
      using Kernel = ScanRows<T>;
      launch(on.stream, "scan_rows",
             {blocks_for(cuda_stream(on.stream), a.outer, 16), Kernel::kThreads, Kernel::kSharedBytes},
             Kernel{x, y, a.outer, a.n, rule});
    } else {
      launch(
          on.stream, "scan_columns",
          {blocks_for(cuda_stream(on.stream), (a.outer * a.inner + kThreads - 1) / kThreads, 16), kThreads},
          ScanColumns<T>{x, y, a.outer, a.n, a.inner, rule});
    }
  });
}

}  // namespace trireme::cuda
