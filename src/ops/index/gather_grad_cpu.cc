// The CPU kernel of gather_grad: sorts positions by index, then sums the slices of each index in order.
#include <cstring>

#include "backend/cpu/elementwise/binary_ops.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/move/zero_fill.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/index/index_access.h"
#include "ops/index/index_ops.h"

namespace trireme::ops {
namespace {

/// dy [outer, count, slice] -> dx [outer, extent, slice].
struct GatherGradPlan {
  int64_t outer = 1, extent = 0, slice = 1, count = 0;
  IndexReader::Rows all;  // all rows, of which this rank holds `extent`
  int64_t padding = -1;   // the held row that gets no gradient; -1: none
  IndexReader at;
};

/// Counting sort: order[first[k]] .. order[first[k + 1]] are the positions with index k, in ascending order.
/// first [extent + 2], order [count].
void sort_positions(const GatherGradPlan& p, const ir::RunArgs& args, int32_t* first, int32_t* order) {
  std::fill_n(first, p.extent + 2, 0);
  // Counts are stored two places later, so that after the second loop first[k] is the start of k.
  for (int64_t i = 0; i < p.count; ++i) {
    const int64_t k = p.at.at_hand(args.in[1], i, p.all, args.status);
    if (k >= 0 && k != p.padding) ++first[k + 2];
  }
  for (int64_t k = 2; k < p.extent + 2; ++k) first[k] += first[k - 1];
  for (int64_t i = 0; i < p.count; ++i) {
    const int64_t k = p.at.at_hand(args.in[1], i, p.all, args.status);
    if (k >= 0 && k != p.padding) order[first[k + 1]++] = static_cast<int32_t>(i);
  }
}

/// Adds the slices of dy at `n` positions to `to`, in order; sums are in the arithmetic type.
template <class T>
void add_slices(const T* dy, const int32_t* order, int64_t n, int64_t slice, T* to) {
  if constexpr (std::is_same_v<T, float>) {
    const cpu::BinaryTile add = cpu::binary_tiles(cpu::BinaryOp::add_).vector_vector;
    for (int64_t i = 0; i < n; ++i) add(to, dy + order[i] * slice, to, static_cast<size_t>(slice));
  } else {
    constexpr int64_t kTile = 256;
    Arithmetic<T> sums[kTile];
    for (int64_t at = 0; at < slice; at += kTile) {
      const int64_t width = std::min(kTile, slice - at);
      for (int64_t j = 0; j < width; ++j) sums[j] = static_cast<Arithmetic<T>>(to[at + j]);
      for (int64_t i = 0; i < n; ++i) {
        const T* from = dy + order[i] * slice + at;
        for (int64_t j = 0; j < width; ++j) sums[j] += static_cast<Arithmetic<T>>(from[j]);
      }
      for (int64_t j = 0; j < width; ++j) to[at + j] = static_cast<T>(sums[j]);
    }
  }
}

/// Initialises the result with zeros, or with the base, which may already be in the result's memory.
void start(const ir::RunArgs& args, bool has_base, int64_t bytes, base::ThreadPool& pool) {
  if (!has_base) return cpu::zero_fill(args.out[0], bytes, pool);
  if (args.out[0] == args.in[2]) return;
  constexpr int64_t kPiece = 65536;
  pool.for_range((bytes + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<std::byte*>(args.out[0]) + begin * kPiece,
                static_cast<const std::byte*>(args.in[2]) + begin * kPiece,
                static_cast<size_t>(std::min(bytes, end * kPiece) - begin * kPiece));
  });
}

template <class T>
ir::BoundKernel bind(const GatherGradPlan& p, bool has_base) {
  const int64_t workspace = (p.extent + 2 + p.count) * static_cast<int64_t>(sizeof(int32_t));
  return {[p, has_base](const ir::RunArgs& args) {
            int32_t* first = static_cast<int32_t*>(args.workspace);
            int32_t* order = first + p.extent + 2;
            sort_positions(p, args, first, order);
            const T* dy = static_cast<const T*>(args.in[0]);
            T* dx = static_cast<T*>(args.out[0]);
            base::ThreadPool& pool = cpu::pool_of(args.stream);
            start(args, has_base, p.outer * p.extent * p.slice * static_cast<int64_t>(sizeof(T)), pool);
            const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, p.slice));
            pool.for_range(p.outer * p.extent, grain, [&](int64_t begin, int64_t end) {
              for (int64_t row = begin; row < end; ++row) {
                const int64_t o = row / p.extent, k = row % p.extent, n = first[k + 1] - first[k];
                if (n != 0)
                  add_slices(dy + o * p.count * p.slice, order + first[k], n, p.slice, dx + row * p.slice);
              }
            });
          },
          workspace};
}

}  // namespace

std::vector<ir::Kernel> gather_grad_cpu_kernels() {
  ir::Kernel k{.name = "sorted"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!tensor::is_float(n.in[0].dtype) || !has_arithmetic(n.in[0].dtype))
      return base::concat("no sums of ", name_of(n.in[0].dtype));
    if (tensor::element_count(n.in_dims(1)) > INT32_MAX || tensor::element_count(n.out_dims(0)) > (1LL << 40))
      return "too many indices";
    return std::nullopt;
  };
  k.prepare = [](const ir::KernelInit& init) -> ir::BoundKernel {
    const ir::NodeView& n = init.node;
    const tensor::Dims x = n.out_dims(0);
    const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.size());
    GatherGradPlan p{.all = {}, .at = IndexReader(n.in[1].dtype)};
    for (size_t d = 0; d < x.size(); ++d)
      (d < axis ? p.outer : d > axis ? p.slice : p.extent) *= d == axis ? 1 : x[d];
    p.extent = x[axis];
    p.all = rows_at_hand(n.attrs, p.extent);
    p.count = tensor::element_count(n.in_dims(1));
    if (n.attrs.has("padding_idx")) {
      const int64_t given = n.attrs.need_int("padding_idx");
      p.padding = (given < 0 ? given + p.all.extent : given) - p.all.first;
    }
    return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
      using T = decltype(zero);
      if constexpr (std::is_integral_v<T>)
        base::check(false, "gather_grad of integers");
      else
        return bind<T>(p, n.present(2));
      return {};
    });
  };
  k.may_overwrite = 4;
  return {k};
}

}  // namespace trireme::ops
