// CPU kernels of cast: chunks of 16 Ki elements shared between threads.
#include "backend/cpu/cpu_stream.h"
#include "ops/elementwise/cast.h"

namespace trireme::ops {
namespace {

ScaleRounding rounding_of(const ir::Attrs& attrs) {
  const std::string mode = attrs.get_string("round_mode", "up");
  base::require(mode == "up" || mode == "down" || mode == "nearest",
                "cast: round_mode up, down or nearest, not '", mode, "'");
  return mode == "up" ? ScaleRounding::up : mode == "down" ? ScaleRounding::down : ScaleRounding::nearest;
}

ir::BoundKernel prepare(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const CastRule rule{node.in[0].dtype, node.out[0].dtype, node.attrs.get_int("saturate", 1) != 0,
                      rounding_of(node.attrs)};
  const int64_t count = tensor::element_count(node.out_dims(0));
  return {[rule, count](const ir::RunArgs& args) {
    constexpr int64_t kPiece = 16384;  // whole bytes of every packing
    cpu::pool_of(args.stream).for_range((count + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
      cast_elements(rule, args.in[0], args.out[0], begin * kPiece, std::min(count, end * kPiece));
    });
  }};
}

}  // namespace

std::vector<ir::Kernel> cast_cpu_kernels() {
  ir::Kernel k{.name = "reference"};
  k.prepare = prepare;
  return {k};
}

}  // namespace trireme::ops
