// Casts, quantization and dequantization of element types without arithmetic on NVIDIA GPUs; they come after
// the kernels of the common types.
#include "backend/cuda/index/codes.h"
#include "ops/cuda_kernels.h"
#include "ops/elementwise/cast.h"
#include "ops/kernel_forms.h"
#include "ops/quant/scale_map.h"

namespace trireme::ops {
namespace {

using tensor::DType;

ir::Refusal refuse_others(const ir::NodeView& n) {
  for (const auto* types : {&n.in, &n.out}) {
    for (const tensor::TensorType& t : *types) {
      if (!cuda::has_codes(t.dtype)) return base::concat("elements of ", name_of(t.dtype));
    }
  }
  return std::nullopt;
}

tensor::ScaleRounding rounding_of(const ir::Attrs& attrs) {
  const std::string mode = attrs.get_string("round_mode", "up");
  base::require(mode == "up" || mode == "down" || mode == "nearest",
                "cast: round_mode up, down or nearest, not '", mode, "'");
  return mode == "up"     ? tensor::ScaleRounding::up
         : mode == "down" ? tensor::ScaleRounding::down
                          : tensor::ScaleRounding::nearest;
}

ir::Kernel cast_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::CodeCast fixed{.from = n.in[0].dtype,
                               .to = n.out[0].dtype,
                               .saturate = n.attrs.get_int("saturate", 1) != 0,
                               .rounding = rounding_of(n.attrs),
                               .n = tensor::element_count(n.out_dims(0))};
    return ir::BoundKernel{[fixed](const ir::RunArgs& args) {
      cuda::CodeCast a = fixed;
      a.x = args.in[0];
      a.y = args.out[0];
      cuda::cast_codes(args.stream, a);
    }};
  };
  return {.name = "codes", .refuse = refuse_others, .prepare = prepare};
}

cuda::CodeQuantize form_of(const ir::NodeView& n) {
  const ScaleMap map = scale_map(n);
  cuda::CodeQuantize q{.from = n.in[0].dtype, .scale_type = n.in[1].dtype, .to = n.out[0].dtype};
  q.layout = {.elements = tensor::element_count(n.in_dims(0)), .n = map.n, .inner = map.inner};
  q.layout.is_single = map.kind == ScaleMap::Kind::tensor;
  if (map.kind == ScaleMap::Kind::blocked) q.layout.block = map.block, q.layout.blocks = map.blocks;
  q.saturate = n.attrs.get_int("saturate", 1) != 0;
  if (n.attrs.get_int("precision", 0) != 0) {
    q.precision = dtype_from_onnx(n.attrs.get_int("precision", 0));
  } else if ((q.scale_type == DType::f16 || q.scale_type == DType::bf16) && q.from == q.scale_type) {
    q.precision = q.scale_type;
  }
  return q;
}

ir::Kernel quantize_kernel() {
  auto refuse = [](const ir::NodeView& n) -> ir::Refusal {
    // Integers of 64 bits may not be exact as doubles.
    if (n.in[0].dtype == DType::i64 || n.in[0].dtype == DType::u64) return "64-bit integers";
    return refuse_others(n);
  };
  auto prepare = [](const ir::KernelInit& init) {
    return ir::BoundKernel{
        [fixed = form_of(init.node), has_zero = init.node.present(2)](const ir::RunArgs& args) {
          cuda::CodeQuantize a = fixed;
          a.x = args.in[0];
          a.scale = args.in[1];
          a.zero = has_zero ? args.in[2] : nullptr;
          a.y = args.out[0];
          cuda::quantize_codes(args.stream, a);
        }};
  };
  return {.name = "codes", .refuse = refuse, .prepare = prepare};
}

ir::Kernel dequantize_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    // The zero points of floats are zero.
    const bool has_zero = init.node.present(2) && tensor::is_integer(init.node.in[0].dtype);
    return ir::BoundKernel{[fixed = form_of(init.node), has_zero](const ir::RunArgs& args) {
      cuda::CodeQuantize a = fixed;
      a.x = args.in[0];
      a.scale = args.in[1];
      a.zero = has_zero ? args.in[2] : nullptr;
      a.y = args.out[0];
      cuda::dequantize_codes(args.stream, a);
    }};
  };
  return {.name = "codes", .refuse = refuse_others, .prepare = prepare};
}

}  // namespace

std::vector<CudaKernels> codes_cuda_kernels() {
  return {{"cast", {cast_kernel()}},
          {"cast_like", {cast_kernel()}},
          {"quantize_linear", {quantize_kernel()}},
          {"dequantize_linear", {dequantize_kernel()}}};
}

}  // namespace trireme::ops
