// Kernels of quantize_linear and dequantize_linear on NVIDIA GPUs.
#include "backend/cuda/quant/quantize.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/quant/scale_map.h"

namespace trireme::ops {
namespace {

using tensor::DType;

cuda::ScaleLayout layout_of(const ir::NodeView& node) {
  const ScaleMap map = scale_map(node);
  cuda::ScaleLayout layout{
      .elements = tensor::element_count(node.in_dims(0)), .n = map.n, .inner = map.inner};
  layout.is_single = map.kind == ScaleMap::Kind::tensor;
  if (map.kind == ScaleMap::Kind::blocked) layout.block = map.block, layout.blocks = map.blocks;
  return layout;
}

ir::Refusal refuse_quantize(const ir::NodeView& node) {
  for (size_t i : {0, 1}) {
    if (auto why = refuse_dtype(node, i, {DType::f32})) return why;
  }
  if (node.out[0].dtype != DType::u8 && node.out[0].dtype != DType::i8)
    return "the result is not an 8-bit integer";
  if (node.attrs.get_int("precision", 0) > 1) return "another precision is asked for";
  return std::nullopt;
}

ir::Refusal refuse_dequantize(const ir::NodeView& node) {
  if (auto why = refuse_dtype(node, 0, {DType::u8, DType::i8, DType::i32})) return why;
  if (node.out[0].dtype != DType::f32) return "the result is not f32";
  return refuse_dtype(node, 1, {DType::f32});
}

using Launcher = void (*)(tensor::Stream&, const cuda::QuantizeArgs&);

/// `of_result`: whether the result rather than the operand holds the integers.
ir::Kernel kernel(Launcher launch, bool of_result) {
  auto prepare = [=](const ir::KernelInit& init) {
    const cuda::QuantizeArgs fixed{.quantized = of_result ? init.node.out[0].dtype : init.node.in[0].dtype,
                                   .layout = layout_of(init.node)};
    return ir::BoundKernel{[fixed, launch, has_zero = init.node.present(2)](const ir::RunArgs& args) {
      cuda::QuantizeArgs a = fixed;
      a.from = args.in[0];
      a.to = args.out[0];
      a.scale = in_ptr<float>(args, 1);
      a.zero = has_zero ? args.in[2] : nullptr;
      launch(args.stream, a);
    }};
  };
  return {.name = "flat", .refuse = of_result ? refuse_quantize : refuse_dequantize, .prepare = prepare};
}

}  // namespace

std::vector<CudaKernels> quants_cuda_kernels() {
  return {{"quantize_linear", {kernel(cuda::quantize_linear, true)}},
          {"dequantize_linear", {kernel(cuda::dequantize_linear, false)}}};
}

}  // namespace trireme::ops
