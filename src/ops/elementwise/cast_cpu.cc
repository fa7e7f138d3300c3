// CPU kernels of cast, which divide chunks of 16 Ki elements among threads.
#include "backend/cpu/elementwise/cast_types.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/elementwise/cast.h"

namespace trireme::ops {
namespace {

ScaleRounding rounding_of(const ir::Attrs& attrs) {
  const std::string mode = attrs.get_string("round_mode", "up");
  base::require(mode == "up" || mode == "down" || mode == "nearest",
                "cast: round_mode up, down or nearest, not '", mode, "'");
  return mode == "up" ? ScaleRounding::up : mode == "down" ? ScaleRounding::down : ScaleRounding::nearest;
}

ir::BoundKernel prepare_cast(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const CastRule rule{node.in[0].dtype, node.out[0].dtype, node.attrs.get_int("saturate", 1) != 0,
                      rounding_of(node.attrs)};
  const int64_t count = tensor::element_count(node.out_dims(0));
  return {[rule, count](const ir::RunArgs& args) {
    constexpr int64_t kPiece = 16384;  // a whole number of bytes for every packing
    cpu::pool_of(args.stream).for_range((count + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
      cast_elements(rule, args.in[0], args.out[0], begin * kPiece, std::min(count, end * kPiece));
    });
  }};
}

}  // namespace

std::vector<ir::Kernel> cast_cpu_kernels() {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.prepare = prepare_cast;
  // The vector kernel refuses 8-bit floats: its code for NaN of f8e5m2 differs from ONNX's test cases.
  ir::Kernel fast{.name = "vector"};
  fast.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!has_arithmetic(n.in[0].dtype) || !has_arithmetic(n.out[0].dtype))
      return "8-bit floats and packed types";
    return std::nullopt;
  };
  fast.prepare = [](const ir::KernelInit& init) -> ir::BoundKernel {
    const tensor::DType from = init.node.in[0].dtype, to = init.node.out[0].dtype;
    const int64_t count = tensor::element_count(init.node.out_dims(0));
    return {[=](const ir::RunArgs& args) {
      cpu::cast({.x = args.in[0], .from = from, .y = args.out[0], .to = to, .n = count},
                cpu::pool_of(args.stream));
    }};
  };
  return {fast, k};
}

}  // namespace trireme::ops
