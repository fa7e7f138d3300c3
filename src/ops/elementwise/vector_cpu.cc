// Elementwise f32 ops on the vector toolkit: its tiles inside the broadcast loops, and the fused interpreter.
#include <algorithm>

#include "backend/cpu/cpu_stream.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/vector_tiles_cpu.h"

namespace trireme::ops {
namespace {

using cpu::BinaryOp;
using cpu::GradientOp;
using cpu::UnaryOp;

struct UnaryName {
  std::string_view name;
  UnaryOp op;
};
constexpr UnaryName kUnary[] = {
    {"abs", UnaryOp::abs},
    {"neg", UnaryOp::neg},
    {"sign", UnaryOp::sign},
    {"floor", UnaryOp::floor},
    {"ceil", UnaryOp::ceil},
    {"round", UnaryOp::round},
    {"exp", UnaryOp::exp},
    {"log", UnaryOp::log},
    {"sqrt", UnaryOp::sqrt},
    {"sin", UnaryOp::sin},
    {"cos", UnaryOp::cos},
    {"reciprocal", UnaryOp::reciprocal},
    {"tanh", UnaryOp::tanh},
    {"erf", UnaryOp::erf},
    {"sigmoid", UnaryOp::sigmoid},
    {"relu", UnaryOp::relu},
    {"leaky_relu", UnaryOp::leaky_relu},
    {"elu", UnaryOp::elu},
    {"selu", UnaryOp::selu},
    {"celu", UnaryOp::celu},
    {"thresholded_relu", UnaryOp::thresholded_relu},
    {"mish", UnaryOp::mish},
    {"swish", UnaryOp::silu},
    {"hard_sigmoid", UnaryOp::hard_sigmoid},
    {"softplus", UnaryOp::softplus},
    {"softsign", UnaryOp::softsign},
    {"hard_swish", UnaryOp::hard_swish},
    {"gelu", UnaryOp::gelu_erf},
    {"gelu_tanh", UnaryOp::gelu_tanh},
    {"shrink", UnaryOp::shrink},
    {"clip", UnaryOp::clip},
    {"pow_scalar", UnaryOp::pow_scalar},
};

struct BinaryName {
  std::string_view name;
  BinaryOp op;
};
constexpr BinaryName kBinary[] = {
    {"add", BinaryOp::add}, {"sub", BinaryOp::sub}, {"mul", BinaryOp::mul},     {"div", BinaryOp::div},
    {"min", BinaryOp::min}, {"max", BinaryOp::max}, {"prelu", BinaryOp::prelu},
};

struct GradientName {
  std::string_view name;
  GradientOp op;
};
constexpr GradientName kGradient[] = {
    {"relu_grad", GradientOp::relu},
    {"leaky_relu_grad", GradientOp::leaky_relu},
    {"thresholded_relu_grad", GradientOp::thresholded_relu},
    {"elu_grad", GradientOp::elu},
    {"selu_grad", GradientOp::selu},
    {"celu_grad", GradientOp::celu},
    {"sigmoid_grad", GradientOp::sigmoid},
    {"hard_sigmoid_grad", GradientOp::hard_sigmoid},
    {"hard_swish_grad", GradientOp::hard_swish},
    {"swish_grad", GradientOp::silu},
    {"mish_grad", GradientOp::mish},
    {"softplus_grad", GradientOp::softplus},
    {"softsign_grad", GradientOp::softsign},
    {"tanh_grad", GradientOp::tanh},
    {"exp_grad", GradientOp::exp},
    {"log_grad", GradientOp::log},
    {"sqrt_grad", GradientOp::sqrt},
    {"reciprocal_grad", GradientOp::reciprocal},
    {"erf_grad", GradientOp::erf},
    {"gelu_grad", GradientOp::gelu_erf},
    {"gelu_tanh_grad", GradientOp::gelu_tanh},
    {"sin_grad", GradientOp::sin},
    {"cos_grad", GradientOp::cos},
    {"abs_grad", GradientOp::abs},
    {"clip_grad", GradientOp::clip},
    {"shrink_grad", GradientOp::shrink},
};

ir::BoundKernel bind_unary(const ir::NodeView& n, const cpu::UnaryFunction& f) {
  const int64_t count = tensor::element_count(n.in_dims(0));
  return {[count, f](const ir::RunArgs& args) {
    cpu::unary(f, static_cast<const float*>(args.in[0]), static_cast<float*>(args.out[0]), count,
               cpu::pool_of(args.stream));
  }};
}

/// Rows of a broadcast the tiles know: both dense, or one of them repeated.
bool fits_tiles(const StridedLoop& loop) {
  const int64_t a = loop.inner_steps()[0], b = loop.inner_steps()[1];
  return loop.inner() == 1 || (a == 1 && (b == 1 || b == 0)) || (a == 0 && b == 1);
}

ir::BoundKernel bind_binary(const ir::NodeView& n, BinaryOp op) {
  const StridedLoop loop = StridedLoop::broadcast(n.out_dims(0), all_in_dims(n));
  return {[loop, op](const ir::RunArgs& args) {
    const cpu::BinaryTiles& tiles = cpu::binary_tiles(op);
    const int64_t sa = loop.inner_steps()[0], sb = loop.inner_steps()[1];
    const cpu::BinaryTile tile = sa == 0 && sb != 0   ? tiles.scalar_vector
                                 : sb == 0 && sa != 0 ? tiles.vector_scalar
                                                      : tiles.vector_vector;
    loop.run(cpu::pool_of(args.stream), [&](const int64_t* offset, int64_t out_offset, int64_t count) {
      tile(static_cast<const float*>(args.in[0]) + offset[0],
           static_cast<const float*>(args.in[1]) + offset[1], static_cast<float*>(args.out[0]) + out_offset,
           static_cast<size_t>(count));
    });
  }};
}

bool all_f32(const ir::NodeView& n) {
  return std::all_of(n.in.begin(), n.in.end(), [](const auto& t) { return t.dtype == tensor::DType::f32; });
}

}  // namespace

std::optional<cpu::UnaryFunction> unary_tile_of(std::string_view name, const Params& params) {
  for (const UnaryName& u : kUnary) {
    if (u.name == name)
      return cpu::UnaryFunction{u.op, {static_cast<float>(params[0]), static_cast<float>(params[1])}};
  }
  return std::nullopt;
}

std::optional<BinaryOp> binary_tile_of(std::string_view name) {
  for (const BinaryName& b : kBinary) {
    if (b.name == name) return b.op;
  }
  return std::nullopt;
}

std::optional<cpu::GradientFunction> gradient_tile_of(std::string_view name, const Params& params) {
  for (const GradientName& g : kGradient) {
    if (g.name == name)
      return cpu::GradientFunction{g.op, {static_cast<float>(params[0]), static_cast<float>(params[1])}};
  }
  return std::nullopt;
}

ir::Kernel vector_gradient_kernel(std::string_view name, std::function<Params(const ir::NodeView&)> params) {
  ir::Kernel k{.name = "vector"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!all_f32(n)) return "the vector toolkit computes f32";
    if (n.in[0].shape != n.in[1].shape) return "an operand is broadcast";
    return std::nullopt;
  };
  k.prepare = [name, params = std::move(params)](const ir::KernelInit& init) -> ir::BoundKernel {
    const int64_t count = tensor::element_count(init.node.in_dims(0));
    const cpu::GradientFunction f = *gradient_tile_of(name, params(init.node));
    return {[count, f](const ir::RunArgs& args) {
      cpu::gradient(f,
                    {.dy = static_cast<const float*>(args.in[0]),
                     .v = static_cast<const float*>(args.in[1]),
                     .dx = static_cast<float*>(args.out[0]),
                     .n = count},
                    cpu::pool_of(args.stream));
    }};
  };
  k.may_overwrite = 3;
  return k;
}

ir::Kernel vector_unary_kernel(std::string_view name, std::function<Params(const ir::Attrs&)> params) {
  ir::Kernel k{.name = "vector"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!all_f32(n)) return "the vector toolkit computes f32";
    return std::nullopt;
  };
  k.prepare = [name, params = std::move(params)](const ir::KernelInit& init) {
    return bind_unary(init.node, *unary_tile_of(name, params(init.node.attrs)));
  };
  k.may_overwrite = 1;
  return k;
}

std::vector<ir::Kernel> vector_kernels(const ElementwiseRow& row) {
  if (row.max_in == 1) {
    if (row.is_predicate || !unary_tile_of(row.name, {})) return {};
    return {vector_unary_kernel(row.name, [&row](const ir::Attrs& attrs) { return params_of(row, attrs); })};
  }
  if (gradient_tile_of(row.name, {})) {
    return {
        vector_gradient_kernel(row.name, [&row](const ir::NodeView& n) { return params_of(row, n.attrs); })};
  }
  const std::optional<BinaryOp> op = row.name == "sum" ? BinaryOp::add : binary_tile_of(row.name);
  if (!op) return {};
  ir::Kernel k{.name = "vector"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!all_f32(n)) return "the vector toolkit computes f32";
    if (n.in.size() != 2) return "the vector toolkit joins two operands";
    if (!fits_tiles(StridedLoop::broadcast(n.out_dims(0), all_in_dims(n))))
      return "an operand is repeated inside rows";
    return std::nullopt;
  };
  k.prepare = [op](const ir::KernelInit& init) { return bind_binary(init.node, *op); };
  k.may_overwrite = 3;
  return {k};
}

}  // namespace trireme::ops
