// Vector kernels of elementwise ops: tiles inside broadcast loops, and the fused interpreter.
#include <algorithm>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/elementwise/elementwise.h"
#include "backend/cpu/elementwise/typed_ops.h"
#include "ops/elementwise/half_tiles_cpu.h"
#include "ops/elementwise/short_rows.h"
#include "ops/elementwise/vector_tiles_cpu.h"

namespace trireme::ops {
namespace {

using cpu::BinaryOp;

/// Elements of one piece of a dense 16-bit run, which takes some microseconds.
constexpr int64_t kHalfPiece = 8 * kHalfTile;

template <class Piece>
void half_pieces(base::ThreadPool& pool, int64_t count, const Piece& piece) {
  pool.for_range((count + kHalfPiece - 1) / kHalfPiece, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kHalfPiece;
    piece(first, std::min(count, end * kHalfPiece) - first);
  });
}

ir::BoundKernel bind_half_unary(tensor::DType dtype, int64_t count, const cpu::UnaryFunction& f) {
  return {[count, f, codec = HalfCodec(dtype)](const ir::RunArgs& args) {
    const cpu::UnaryTile tile = cpu::unary_tile(f.op);
    half_pieces(cpu::pool_of(args.stream), count, [&](int64_t at, int64_t n) {
      half_unary(codec, static_cast<const uint16_t*>(args.in[0]) + at,
                 static_cast<uint16_t*>(args.out[0]) + at, n,
                 [&](const float* x, float* y, size_t c) { tile(x, y, c, f.params); });
    });
  }};
}

ir::BoundKernel bind_unary(const ir::NodeView& n, const cpu::UnaryFunction& f) {
  const int64_t count = tensor::element_count(n.in_dims(0));
  if (is_half(n.in[0].dtype)) return bind_half_unary(n.in[0].dtype, count, f);
  return {[count, f](const ir::RunArgs& args) {
    cpu::unary(f, static_cast<const float*>(args.in[0]), static_cast<float*>(args.out[0]), count,
               cpu::pool_of(args.stream));
  }};
}

/// Whether the tiles support the rows of a broadcast: both operands dense, or one of them repeated.
bool fits_tiles(const StridedLoop& loop) {
  const int64_t a = loop.inner_steps()[0], b = loop.inner_steps()[1];
  return loop.inner() == 1 || (a == 1 && (b == 1 || b == 0)) || (a == 0 && b == 1);
}

cpu::BinaryTile tile_of(BinaryOp op, int64_t sa, int64_t sb) {
  const cpu::BinaryTiles& tiles = cpu::binary_tiles(op);
  return sa == 0 && sb != 0   ? tiles.scalar_vector
         : sb == 0 && sa != 0 ? tiles.vector_scalar
                              : tiles.vector_vector;
}

ir::BoundKernel bind_half_binary(tensor::DType dtype, const StridedLoop& loop, BinaryOp op) {
  return {[loop, op, codec = HalfCodec(dtype)](const ir::RunArgs& args) {
    // Rows of one element have no steps, so both operands are read as vectors of one element.
    const int64_t sa = loop.inner() == 1 ? 1 : loop.inner_steps()[0];
    const int64_t sb = loop.inner() == 1 ? 1 : loop.inner_steps()[1];
    const cpu::BinaryTile tile = tile_of(op, sa, sb);
    loop.run(cpu::pool_of(args.stream), [&](const int64_t* offset, int64_t out_offset, int64_t count) {
      const HalfOperands operands{static_cast<const uint16_t*>(args.in[0]) + offset[0],
                                  static_cast<const uint16_t*>(args.in[1]) + offset[1], sa, sb};
      half_binary(codec, operands, static_cast<uint16_t*>(args.out[0]) + out_offset, count, tile);
    });
  }};
}

ir::BoundKernel bind_binary(const ir::NodeView& n, BinaryOp op) {
  const StridedLoop loop = StridedLoop::broadcast(n.out_dims(0), all_in_dims(n));
  if (is_half(n.in[0].dtype)) return bind_half_binary(n.in[0].dtype, loop, op);
  if (ShortRows::fits(loop)) {
    return {[rows = ShortRows(loop, {4, 4}), op](const ir::RunArgs& args) {
      const cpu::BinaryTile tile = cpu::binary_tiles(op).vector_vector;
      rows.run(cpu::pool_of(args.stream), args.in, [&](const void* const* in, int64_t out, int64_t count) {
        tile(static_cast<const float*>(in[0]), static_cast<const float*>(in[1]),
             static_cast<float*>(args.out[0]) + out, static_cast<size_t>(count));
      });
    }};
  }
  return {[loop, op](const ir::RunArgs& args) {
    const cpu::BinaryTile tile = tile_of(op, loop.inner_steps()[0], loop.inner_steps()[1]);
    loop.run(cpu::pool_of(args.stream), [&](const int64_t* offset, int64_t out_offset, int64_t count) {
      tile(static_cast<const float*>(args.in[0]) + offset[0],
           static_cast<const float*>(args.in[1]) + offset[1], static_cast<float*>(args.out[0]) + out_offset,
           static_cast<size_t>(count));
    });
  }};
}

ir::BoundKernel bind_typed(const ir::NodeView& n, const cpu::TypedTiles& tiles) {
  const StridedLoop loop = StridedLoop::broadcast(n.out_dims(0), all_in_dims(n));
  const int bytes = tensor::bits_of(n.in[0].dtype) / 8, out_bytes = tensor::bits_of(n.out[0].dtype) / 8;
  if (ShortRows::fits(loop)) {
    return {[rows = ShortRows(loop, {bytes, bytes}), tiles, out_bytes](const ir::RunArgs& args) {
      rows.run(cpu::pool_of(args.stream), args.in, [&](const void* const* in, int64_t out, int64_t count) {
        tiles.vector_vector(in[0], in[1], static_cast<std::byte*>(args.out[0]) + out * out_bytes,
                            static_cast<size_t>(count));
      });
    }};
  }
  return {[=](const ir::RunArgs& args) {
    const int64_t sa = loop.inner_steps()[0], sb = loop.inner_steps()[1];
    const cpu::TypedTile tile = sa == 0 && sb != 0   ? tiles.scalar_vector
                                : sb == 0 && sa != 0 ? tiles.vector_scalar
                                                     : tiles.vector_vector;
    loop.run(cpu::pool_of(args.stream), [&](const int64_t* offset, int64_t out_offset, int64_t count) {
      tile(static_cast<const std::byte*>(args.in[0]) + offset[0] * bytes,
           static_cast<const std::byte*>(args.in[1]) + offset[1] * bytes,
           static_cast<std::byte*>(args.out[0]) + out_offset * out_bytes, static_cast<size_t>(count));
    });
  }};
}

/// The kernel for elements that are not floats, and for comparisons of floats.
ir::Kernel typed_kernel(BinaryOp op) {
  ir::Kernel k{.name = "typed_vector"};
  k.refuse = [op](const ir::NodeView& n) -> ir::Refusal {
    if (n.in.size() != 2) return "the vector toolkit joins two operands";
    if (cpu::typed_tiles(op, n.in[0].dtype).vector_vector == nullptr)
      return base::concat("the vector toolkit has no such function of ", name_of(n.in[0].dtype));
    return std::nullopt;
  };
  k.prepare = [op](const ir::KernelInit& init) {
    return bind_typed(init.node, cpu::typed_tiles(op, init.node.in[0].dtype));
  };
  k.may_overwrite = 3;
  return k;
}

ir::BoundKernel bind_gradient(const ir::NodeView& n, const cpu::GradientFunction& f) {
  const int64_t count = tensor::element_count(n.in_dims(0));
  if (!is_half(n.in[0].dtype)) {
    return {[count, f](const ir::RunArgs& args) {
      cpu::gradient(f,
                    {.dy = static_cast<const float*>(args.in[0]),
                     .v = static_cast<const float*>(args.in[1]),
                     .dx = static_cast<float*>(args.out[0]),
                     .n = count},
                    cpu::pool_of(args.stream));
    }};
  }
  return {[count, f, codec = HalfCodec(n.in[0].dtype)](const ir::RunArgs& args) {
    const cpu::GradientTile tile = cpu::gradient_tile(f.op);
    half_pieces(cpu::pool_of(args.stream), count, [&](int64_t at, int64_t c) {
      const HalfOperands operands{static_cast<const uint16_t*>(args.in[0]) + at,
                                  static_cast<const uint16_t*>(args.in[1]) + at};
      half_binary(
          codec, operands, static_cast<uint16_t*>(args.out[0]) + at, c,
          [&](const float* dy, const float* v, float* dx, size_t k) { tile(dy, v, dx, k, f.params); });
    });
  }};
}

/// Whether all operands are f32, or all of the same 16-bit type.
bool fits_vectors(const ir::NodeView& n) {
  const tensor::DType t = n.in[0].dtype;
  return (t == tensor::DType::f32 || is_half(t)) &&
         std::all_of(n.in.begin(), n.in.end(), [t](const auto& in) { return in.dtype == t; });
}

}  // namespace

namespace {

cpu::UnaryParams unary_params(const Params& params) {
  return {static_cast<float>(params[0]), static_cast<float>(params[1])};
}

}  // namespace

std::optional<cpu::UnaryFunction> unary_tile_of(std::string_view name, const Params& params) {
  const auto op = cpu::unary_op_of(name);
  return op ? std::optional(cpu::UnaryFunction{*op, unary_params(params)}) : std::nullopt;
}

std::optional<cpu::GradientFunction> gradient_tile_of(std::string_view name, const Params& params) {
  const auto op = cpu::gradient_op_of(name);
  return op ? std::optional(cpu::GradientFunction{*op, unary_params(params)}) : std::nullopt;
}

size_t vector_operands(std::string_view name) {
  if (cpu::unary_op_of(name)) return 1;
  return cpu::binary_op_of(name) || cpu::gradient_op_of(name) ? 2 : 0;
}

ir::Kernel vector_gradient_kernel(std::string_view name, std::function<Params(const ir::NodeView&)> params) {
  ir::Kernel k{.name = "vector"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!fits_vectors(n)) return "the vector toolkit computes f32 and 16-bit floats";
    if (n.in[0].shape != n.in[1].shape) return "an operand is broadcast";
    return std::nullopt;
  };
  k.prepare = [name, params = std::move(params)](const ir::KernelInit& init) -> ir::BoundKernel {
    return bind_gradient(init.node, *gradient_tile_of(name, params(init.node)));
  };
  k.may_overwrite = 3;
  return k;
}

ir::Kernel vector_unary_kernel(std::string_view name, std::function<Params(const ir::Attrs&)> params) {
  ir::Kernel k{.name = "vector"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!fits_vectors(n)) return "the vector toolkit computes f32 and 16-bit floats";
    return std::nullopt;
  };
  k.prepare = [name, params = std::move(params)](const ir::KernelInit& init) {
    return bind_unary(init.node, *unary_tile_of(name, params(init.node.attrs)));
  };
  k.may_overwrite = 1;
  return k;
}

namespace {

/// not x is computed as x xor true.
ir::Kernel not_kernel() {
  ir::Kernel k{.name = "typed_vector"};
  k.prepare = [](const ir::KernelInit& init) -> ir::BoundKernel {
    const int64_t count = tensor::element_count(init.node.in_dims(0));
    const cpu::TypedTile tile = cpu::typed_tiles(BinaryOp::xor_, tensor::DType::boolean).vector_scalar;
    return {[count, tile](const ir::RunArgs& args) {
      const std::byte* x = static_cast<const std::byte*>(args.in[0]);
      std::byte* y = static_cast<std::byte*>(args.out[0]);
      cpu::pool_of(args.stream).for_range(count, 65536, [&](int64_t begin, int64_t end) {
        const uint8_t yes = 1;
        tile(x + begin, &yes, y + begin, static_cast<size_t>(end - begin));
      });
    }};
  };
  k.may_overwrite = 1;
  return k;
}

}  // namespace

std::vector<ir::Kernel> vector_kernels(const ElementwiseRow& row) {
  if (row.name == "not") return {not_kernel()};
  if (row.max_in == 1) {
    if (row.is_predicate || !unary_tile_of(row.name, {})) return {};
    return {vector_unary_kernel(row.name, [&row](const ir::Attrs& attrs) { return params_of(row, attrs); })};
  }
  if (gradient_tile_of(row.name, {})) {
    return {
        vector_gradient_kernel(row.name, [&row](const ir::NodeView& n) { return params_of(row, n.attrs); })};
  }
  if (row.divides) return {};
  const std::optional<BinaryOp> op = cpu::binary_op_of(row.function), typed = cpu::typed_op_of(row.function);
  if (!op) return typed ? std::vector{typed_kernel(*typed)} : std::vector<ir::Kernel>{};
  ir::Kernel k{.name = "vector"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!fits_vectors(n)) return "the vector toolkit computes f32 and 16-bit floats";
    if (n.in.size() != 2) return "the vector toolkit joins two operands";
    if (!fits_tiles(StridedLoop::broadcast(n.out_dims(0), all_in_dims(n))))
      return "an operand is repeated inside rows";
    return std::nullopt;
  };
  k.prepare = [op](const ir::KernelInit& init) { return bind_binary(init.node, *op); };
  k.may_overwrite = 3;
  if (typed) return {k, typed_kernel(*typed)};
  return {k};
}

}  // namespace trireme::ops
