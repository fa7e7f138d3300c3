// CPU kernels of gather, gather_elements, gather_nd, compress and non_zero.
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/move/transpose_copy.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/index/index_access.h"
#include "ops/index/index_ops.h"
#include "ops/index/lane_index_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/shape/strided_copy.h"
#include "tensor/absent.h"

namespace trireme::ops {
namespace {

/// Gathers slices for indices [first, first + count) of one outer index.
struct GatherRun {
  const std::byte* x;
  std::byte* y;
  const void* indices;
  int64_t first, count, slice;
};

template <int64_t kSlice>
void gather_slices(const GatherRun& g, const IndexReader& at, const IndexReader::Rows& all,
                   ir::RunStatus* status) {
  const int64_t slice = kSlice > 0 ? kSlice : g.slice;
  for (int64_t i = 0; i < g.count; ++i) {
    const int64_t k = at.at_hand(g.indices, g.first + i, all, status);
    if (k < 0)
      std::memset(g.y + i * slice, 0, static_cast<size_t>(slice));
    else
      std::memcpy(g.y + i * slice, g.x + k * slice, static_cast<size_t>(slice));
  }
}

/// Slices of the usual small sizes are copied without a call of memcpy.
void gather_run(const GatherRun& g, const IndexReader& at, const IndexReader::Rows& all,
                ir::RunStatus* status) {
  switch (g.slice) {
    case 1: return gather_slices<1>(g, at, all, status);
    case 2: return gather_slices<2>(g, at, all, status);
    case 4: return gather_slices<4>(g, at, all, status);
    case 8: return gather_slices<8>(g, at, all, status);
    case 12: return gather_slices<12>(g, at, all, status);
    case 16: return gather_slices<16>(g, at, all, status);
    case 32: return gather_slices<32>(g, at, all, status);
    default: return gather_slices<0>(g, at, all, status);
  }
}

/// If there is only one index, gathering is a strided copy.
struct GatherOne {
  int64_t outer, extent, slice;
};
void gather_one(const GatherOne& g, const IndexReader& at, const IndexReader::Rows& all,
                const ir::RunArgs& args) {
  std::byte* y = static_cast<std::byte*>(args.out[0]);
  const int64_t k = at.at_hand(args.in[1], 0, all, args.status);
  if (k < 0) {
    std::memset(y, 0, static_cast<size_t>(g.outer * g.slice));
    return;
  }
  const int64_t shape[] = {g.outer, g.slice}, x_steps[] = {g.extent * g.slice, 1}, y_steps[] = {g.slice, 1};
  cpu::copy_strided({static_cast<const std::byte*>(args.in[0]) + k * g.slice, y, shape, x_steps, y_steps,
                     /*element_bytes=*/1},
                    cpu::pool_of(args.stream));
}

/// x [outer, extent, slice] at indices [count] -> y [outer, count, slice], where a slice is a run of bytes.
/// Slices that another rank holds are zero.
ir::BoundKernel bind_gather(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0);
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.size());
  const int64_t outer = product(x, 0, axis), extent = x[axis];
  const int64_t slice = product(x, axis + 1, x.size()) * element_bytes_of(n.in[0].dtype);
  const int64_t count = tensor::element_count(n.in_dims(1));
  const IndexReader at(n.in[1].dtype);
  const IndexReader::Rows all = rows_at_hand(n.attrs, extent);
  return {[=](const ir::RunArgs& args) {
    if (count == 1 && outer > 1) return gather_one({outer, extent, slice}, at, all, args);
    const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, slice));
    cpu::pool_of(args.stream).for_range(outer * count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end;) {
        const int64_t o = i / count, first = i - o * count, run = std::min(end - i, count - first);
        gather_run({static_cast<const std::byte*>(args.in[0]) + o * extent * slice,
                    static_cast<std::byte*>(args.out[0]) + i * slice, args.in[1], first, run, slice},
                   at, all, args.status);
        i += run;
      }
    });
  }};
}

/// Steps of x without the axis, along the extents of the indices.
StridedLoop elements_loop(const tensor::Dims& x, const tensor::Dims& indices, size_t axis) {
  std::vector<int64_t> steps = dense_steps(x);
  steps[axis] = 0;
  return StridedLoop(indices, {steps});
}

ir::BoundKernel bind_gather_elements(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0);
  if (x.empty()) {
    return bind_bytes(n, [](const ByteArgs& args) { std::memcpy(args.out[0], args.in[0], 1); });
  }
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.size());
  const StridedLoop loop = elements_loop(x, n.in_dims(1), axis);
  const int64_t axis_step = dense_steps(x)[axis], extent = x[axis];
  const int64_t size = element_bytes_of(n.in[0].dtype);
  const IndexReader at(n.in[1].dtype);
  const auto bind = [&](auto word) -> ir::BoundKernel {
    using W = decltype(word);
    return {[=](const ir::RunArgs& args) {
      const W* in = static_cast<const W*>(args.in[0]);
      W* out = static_cast<W*>(args.out[0]);
      const int64_t step = loop.inner_steps()[0];
      loop.run(cpu::pool_of(args.stream), [&](const int64_t* offset, int64_t out_offset, int64_t count) {
        const W* row = in + offset[0];
        for (int64_t i = 0; i < count; ++i) {
          const int64_t k = at.checked(args.in[1], out_offset + i, extent, args.status);
          if (k >= 0) out[out_offset + i] = row[i * step + k * axis_step];
        }
      });
    }};
  };
  switch (size) {
    case 1: return bind(uint8_t{});
    case 2: return bind(uint16_t{});
    case 4: return bind(uint32_t{});
    case 8: return bind(uint64_t{});
    default: base::fail_unsupported("gather_elements of elements of ", size, " bytes");
  }
}

/// x [batch..., indexed..., slice] at tuples [batch..., tuples, depth] -> y [batch..., tuples, slice].
ir::BoundKernel bind_gather_nd(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0), at = n.in_dims(1);
  const size_t batch_dims = static_cast<size_t>(n.attrs.get_int("batch_dims", 0));
  const size_t depth = static_cast<size_t>(at.back());
  const int64_t batches = product(at, 0, batch_dims), tuples = product(at, batch_dims, at.size() - 1);
  const int64_t block = product(x, batch_dims, x.size());
  const TupleReader reader(x, batch_dims, depth);
  const int64_t size = element_bytes_of(n.in[0].dtype), slice = reader.slice() * size;
  return {[=](const ir::RunArgs& args) {
    const std::byte* in = static_cast<const std::byte*>(args.in[0]);
    std::byte* out = static_cast<std::byte*>(args.out[0]);
    cpu::pool_of(args.stream).for_range(batches * tuples, 256, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t offset = reader.offset(
            static_cast<const int64_t*>(args.in[1]) + i * static_cast<int64_t>(depth), args.status);
        if (offset < 0) continue;
        std::memcpy(out + i * slice, in + (i / tuples * block + offset) * size, static_cast<size_t>(slice));
      }
    });
  }};
}

/// x [outer, extent, slice] -> the slices whose condition is true, in order.
ir::BoundKernel bind_compress(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0), out_dims = n.out_dims(0);
  const bool has_axis = n.attrs.has("axis");
  const size_t axis = has_axis ? ir::normal_axis(n.attrs.need_int("axis"), x.size()) : 0;
  const int64_t outer = has_axis ? product(x, 0, axis) : 1;
  const int64_t extent = has_axis ? x[axis] : tensor::element_count(x);
  const int64_t slice = (has_axis ? product(x, axis + 1, x.size()) : 1) * element_bytes_of(n.in[0].dtype);
  const int64_t flags = std::min(extent, tensor::element_count(n.in_dims(1)));
  const int64_t kept = has_axis ? out_dims[axis] : out_dims[0];
  return {[=](const ir::RunArgs& args) {
    const bool* keeps = static_cast<const bool*>(args.in[1]);
    const std::byte* in = static_cast<const std::byte*>(args.in[0]);
    std::byte* out = static_cast<std::byte*>(args.out[0]);
    for (int64_t o = 0; o < outer; ++o) {
      int64_t to = 0;
      for (int64_t i = 0; i < flags && to < kept; ++i) {
        if (!keeps[i]) continue;
        std::memcpy(out + (o * kept + to++) * slice, in + (o * extent + i) * slice,
                    static_cast<size_t>(slice));
      }
    }
  }};
}

ir::BoundKernel bind_non_zero(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0);
  const int64_t count = tensor::element_count(x), columns = n.out_dims(0)[1];
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[=](const ir::RunArgs& args) {
      const T* values = static_cast<const T*>(args.in[0]);
      int64_t* y = static_cast<int64_t*>(args.out[0]);  // [rank, columns]
      const size_t rank = x.size();
      const int64_t inner = rank == 0 ? 1 : x[rank - 1];
      int64_t column = 0;
      constexpr int64_t kPart = 256;
      // The outer indices of a row are computed once, and only if it has a non-zero element.
      for (int64_t start = 0; start < count; start += inner) {
        const int64_t first = column;
        for (int64_t part = 0; part < inner; part += kPart) {
          // Writes every index but advances only for non-zero elements, which avoids an unpredictable branch.
          int64_t found[kPart], kept = 0;
          for (int64_t i = part; i < std::min(inner, part + kPart); ++i) {
            found[kept] = i;
            kept += static_cast<Arithmetic<T>>(values[start + i]) != 0;
          }
          kept = std::min(kept, columns - column);
          if (rank > 0) std::copy_n(found, kept, y + static_cast<int64_t>(rank - 1) * columns + column);
          column += kept;
        }
        int64_t rest = start / std::max<int64_t>(1, inner);
        for (size_t d = rank == 0 ? 0 : rank - 1; d-- > 0 && column > first; rest /= x[d]) {
          int64_t* to = y + static_cast<int64_t>(d) * columns;
          std::fill(to + first, to + column, rest % x[d]);
        }
      }
    }};
  });
}

ir::Refusal needs_bytes(const ir::NodeView& n) {
  if (tensor::bits_of(n.in[0].dtype) < 8)
    return base::concat("no indexing into packed ", name_of(n.in[0].dtype));
  return std::nullopt;
}

std::vector<ir::Kernel> gather_reference(ir::BoundKernel (*bind)(const ir::NodeView&)) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = needs_bytes;
  k.prepare = [bind](const ir::KernelInit& init) { return bind(init.node); };
  return {k};
}

/// Ops whose result extent depends on an operand's values; kernels run only if that operand is known.
std::vector<ir::Kernel> counted(ir::BoundKernel (*bind)(const ir::NodeView&), size_t operand) {
  std::vector<ir::Kernel> kernels = gather_reference(bind);
  kernels[0].refuse = [operand](const ir::NodeView& n) -> ir::Refusal {
    if (n.value(operand) == nullptr) return "the result's size depends on data: runs outside programs";
    return needs_bytes(n);
  };
  kernels[0].prepare = [bind, operand](const ir::KernelInit& init) {
    return tensor::is_absent(*init.node.value(operand)) ? ir::BoundKernel{} : bind(init.node);
  };
  return kernels;
}

}  // namespace

std::vector<ir::Kernel> gather_cpu_kernels() { return gather_reference(bind_gather); }
std::vector<ir::Kernel> gather_elements_cpu_kernels() {
  return {gather_lanes_kernel(), gather_reference(bind_gather_elements)[0]};
}
std::vector<ir::Kernel> gather_nd_cpu_kernels() { return gather_reference(bind_gather_nd); }
std::vector<ir::Kernel> compress_cpu_kernels() { return counted(bind_compress, 1); }
std::vector<ir::Kernel> non_zero_cpu_kernels() { return counted(bind_non_zero, 0); }

}  // namespace trireme::ops
