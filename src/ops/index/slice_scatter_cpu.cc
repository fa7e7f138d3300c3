// scatter_nd by slices: tuples become offsets without a branch, then slices of one type join in operand
// order.
#include <algorithm>
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/index/join_update.h"
#include "ops/index/lane_index_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/shape/strided_copy.h"

namespace trireme::ops {
namespace {

/// Where the slices of a run begin in x, in elements; -1 where an index is out of range.
struct SliceOffsets {
  int64_t at[kOffsetRun];
};

/// Updates [count, slice] into those slices of y that begin in [first, last), in their order.
struct SlicePart {
  int64_t slice, first, last;
};
using JoinSlices = void (*)(void* y, const void* updates, const SliceOffsets& to, int64_t count,
                            const SlicePart& part);

struct JoinSliceLoops {
  template <class T, ScatterMode kMode>
  static void join(T* y, const T* u, int64_t slice) {
    if constexpr (kMode == ScatterMode::none) {
      const size_t bytes = static_cast<size_t>(slice) * sizeof(T);
      // A copy whose size the compiler knows is a move, not a call.
      if (bytes == 16) {
        std::memcpy(y, u, 16);
      } else if (bytes == 8) {
        std::memcpy(y, u, 8);
      } else {
        std::memcpy(y, u, bytes);
      }
    } else {
      for (int64_t i = 0; i < slice; ++i) join_update<T, kMode>(y[i], u[i]);
    }
  }
  template <class T, ScatterMode kMode>
  static JoinSlices of() {
    return [](void* out, const void* updates, const SliceOffsets& to, int64_t count, const SlicePart& part) {
      T* y = static_cast<T*>(out);
      const T* u = static_cast<const T*>(updates);
      const auto width = static_cast<uint64_t>(part.last - part.first);
      if (part.slice == 1) {
        for (int64_t i = 0; i < count; ++i) {
          if (static_cast<uint64_t>(to.at[i] - part.first) < width) join_update<T, kMode>(y[to.at[i]], u[i]);
        }
        return;
      }
      for (int64_t i = 0; i < count; ++i, u += part.slice) {
        if (static_cast<uint64_t>(to.at[i] - part.first) < width) join<T, kMode>(y + to.at[i], u, part.slice);
      }
    };
  }
};

/// What the tuples of a node choose from.
struct SlicePlan {
  size_t depth = 0;
  std::vector<int64_t> extent, step;  // [depth], steps in elements
  int64_t tuples = 1, slice = 1, elements = 1;
};

SlicePlan plan_slices(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0), at = n.in_dims(1);
  SlicePlan p;
  p.depth = static_cast<size_t>(at.back());
  p.extent.assign(x.begin(), x.begin() + at.back());
  p.step = dense_steps(x);
  p.step.resize(p.depth);
  for (size_t d = 0; d + 1 < at.size(); ++d) p.tuples *= at[d];
  for (size_t d = p.depth; d < x.size(); ++d) p.slice *= x[d];
  p.elements = tensor::element_count(x);
  return p;
}

/// Reports the first index that is out of range.
void report(const SlicePlan& p, const int64_t* tuple, int64_t count, ir::RunStatus* status) {
  for (int64_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < p.depth; ++k, ++tuple) {
      if (*tuple >= p.extent[k] || *tuple < -p.extent[k])
        return status->fail("an index is out of range", *tuple);
    }
  }
}

void resolve_tuples(const SlicePlan& p, const int64_t* tuple, int64_t count, ir::RunStatus* status,
                    SliceOffsets& to) {
  bool all_valid = true;
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    bool is_valid = true;
    for (size_t k = 0; k < p.depth; ++k) {
      const int64_t given = *tuple++, at = given < 0 ? given + p.extent[k] : given;
      const bool fits = static_cast<uint64_t>(at) < static_cast<uint64_t>(p.extent[k]);
      is_valid &= fits;
      offset += fits ? at * p.step[k] : 0;
    }
    all_valid &= is_valid;
    to.at[i] = is_valid ? offset : -1;
  }
  if (!all_valid && status != nullptr)
    report(p, tuple - count * static_cast<int64_t>(p.depth), count, status);
}

/// Copies x to the result, pieces of it over the team, unless the compiler lets both share memory.
void start_from_x(const ir::RunArgs& args, int64_t bytes, base::ThreadPool& pool) {
  if (args.out[0] == args.in[0]) return;
  constexpr int64_t kPiece = 1 << 18;
  pool.for_range(bytes, kPiece, [&](int64_t begin, int64_t end) {
    std::memcpy(out_ptr<std::byte>(args, 0) + begin, in_ptr<std::byte>(args, 0) + begin,
                static_cast<size_t>(end - begin));
  });
}

/// Each part reads all tuples, which pays where their slices are wide.
int64_t parts_of(const SlicePlan& p, int64_t element, int threads) {
  constexpr int64_t kWide = 64, kTask = 1 << 16;  // bytes
  if (p.slice * element < kWide) return 1;
  return std::clamp<int64_t>(p.tuples * p.slice * element / kTask, 1,
                             std::min<int64_t>(threads, p.elements / p.slice));
}

ir::BoundKernel bind_slices(const ir::KernelInit& init) {
  const SlicePlan p = plan_slices(init.node);
  const JoinSlices join = join_loop<JoinSliceLoops>(init.node);
  const int64_t size = element_bytes_of(init.node.in[0].dtype), bytes = tensor::bytes_of(init.node.out[0]);
  return {[=](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    start_from_x(args, bytes, pool);
    const int64_t slices = p.elements / p.slice, parts = parts_of(p, size, pool.size());
    pool.run(parts, [&](int64_t i) {
      const SlicePart part{p.slice, slices * i / parts * p.slice, slices * (i + 1) / parts * p.slice};
      SliceOffsets to;
      for (int64_t first = 0; first < p.tuples; first += kOffsetRun) {
        const int64_t count = std::min(kOffsetRun, p.tuples - first);
        resolve_tuples(p, in_ptr<int64_t>(args, 1) + first * static_cast<int64_t>(p.depth), count,
                       args.status, to);
        join(args.out[0], in_ptr<std::byte>(args, 2) + first * p.slice * size, to, count, part);
      }
    });
  }};
}

}  // namespace

ir::Kernel scatter_slices_kernel() {
  ir::Kernel k{.name = "slices", .refuse = refuse_join, .prepare = bind_slices};
  k.may_overwrite = 1;
  return k;
}

}  // namespace trireme::ops
