// CPU kernel of col2im: adds every column of a block at the block's place in the image.
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/shape/fill_ops.h"
#include "ops/shape/strided_copy.h"

namespace trireme::ops {
namespace {

struct Geometry {
  std::vector<int64_t> image, block, dilations, pads, strides, positions;
  int64_t planes = 0, block_count = 1, position_count = 1, image_count = 1;
};

Geometry geometry_of(const ir::NodeView& n) {
  Geometry g;
  g.image = *known_ints(n, 1);
  g.block = *known_ints(n, 2);
  const size_t rank = g.image.size();
  g.dilations = n.attrs.get_ints("dilations", std::vector<int64_t>(rank, 1));
  g.pads = n.attrs.get_ints("pads", std::vector<int64_t>(2 * rank, 0));
  g.strides = n.attrs.get_ints("strides", std::vector<int64_t>(rank, 1));
  g.positions = window_positions(n);
  for (size_t d = 0; d < rank; ++d) {
    g.block_count *= g.block[d];
    g.position_count *= g.positions[d];
    g.image_count *= g.image[d];
  }
  return g;
}

/// The geometry of planes of the columns [n, c * block, positions].
Geometry column_geometry(const ir::NodeView& n) {
  Geometry g = geometry_of(n);
  const tensor::Dims x = n.in_dims(0);
  base::require(x[2] == g.position_count, "col2im: ", x[2], " columns, the image has ", g.position_count,
                " positions");
  g.planes = x[0] * (x[1] / g.block_count);
  return g;
}

/// Offset in the image of element `b` of the block at position `p`, or -1 outside.
int64_t image_offset(const Geometry& g, int64_t b, int64_t p) {
  int64_t offset = 0, step = 1;
  for (size_t d = g.image.size(); d-- > 0;) {
    const int64_t at = p % g.positions[d] * g.strides[d] + b % g.block[d] * g.dilations[d] - g.pads[d];
    if (at < 0 || at >= g.image[d]) return -1;
    offset += at * step;
    step *= g.image[d];
    p /= g.positions[d];
    b /= g.block[d];
  }
  return offset;
}

template <class T>
void run(const Geometry& g, const ir::RunArgs& args) {
  const T* x = static_cast<const T*>(args.in[0]);  // [planes, block, positions]
  T* y = static_cast<T*>(args.out[0]);             // [planes, image]
  cpu::pool_of(args.stream).for_range(g.planes, 1, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      std::fill(y + plane * g.image_count, y + (plane + 1) * g.image_count, static_cast<T>(0));
      for (int64_t b = 0; b < g.block_count; ++b) {
        for (int64_t p = 0; p < g.position_count; ++p) {
          const int64_t at = image_offset(g, b, p);
          if (at < 0) continue;
          T& sum = y[plane * g.image_count + at];
          sum = static_cast<T>(
              static_cast<Arithmetic<T>>(sum) +
              static_cast<Arithmetic<T>>(x[(plane * g.block_count + b) * g.position_count + p]));
        }
      }
    }
  });
}

template <class T>
void gather_blocks(const Geometry& g, const ir::RunArgs& args) {
  const T* x = static_cast<const T*>(args.in[0]);  // [planes, image]
  T* y = static_cast<T*>(args.out[0]);             // [planes, block, positions]
  cpu::pool_of(args.stream).for_range(g.planes * g.block_count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* image = x + row / g.block_count * g.image_count;
      for (int64_t p = 0; p < g.position_count; ++p) {
        const int64_t at = image_offset(g, row % g.block_count, p);
        y[row * g.position_count + p] = at < 0 ? static_cast<T>(0) : image[at];
      }
    }
  });
}

}  // namespace

std::vector<ir::Kernel> im2col_cpu_kernels() {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = needs_values({1, 2});
  k.prepare = [](const ir::KernelInit& init) {
    Geometry g = geometry_of(init.node);
    const tensor::Dims x = init.node.in_dims(0);
    g.planes = x[0] * x[1];
    return tensor::visit_dtype(init.node.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
      using T = decltype(zero);
      return {[g](const ir::RunArgs& args) { gather_blocks<T>(g, args); }};
    });
  };
  return {k};
}

std::vector<ir::Kernel> col2im_cpu_kernels() {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = needs_values({1, 2});
  k.prepare = [](const ir::KernelInit& init) {
    const Geometry g = column_geometry(init.node);
    return tensor::visit_dtype(init.node.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
      using T = decltype(zero);
      return {[g](const ir::RunArgs& args) { run<T>(g, args); }};
    });
  };
  return {k};
}

}  // namespace trireme::ops
