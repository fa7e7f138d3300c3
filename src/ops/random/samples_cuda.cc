// Draws of tokens and classes on NVIDIA GPUs.
#include <bit>

#include "backend/cuda/element_program.h"
#include "backend/cuda/sample.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

ir::Kernel sample_tokens() {
  ir::Kernel k{.name = "searched"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.in_dims(0)[1] == 0 || n.in_dims(0)[1] > INT32_MAX) return "no tokens, or more than 2^31";
    return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16});
  };
  k.prepare = [](const ir::KernelInit& init) {
    const cuda::SampleArgs fixed{.rows = init.node.in_dims(0)[0], .n = init.node.in_dims(0)[1]};
    return ir::BoundKernel{[fixed, dtype = init.node.in[0].dtype](const ir::RunArgs& args) {
      cuda::SampleArgs a = fixed;
      a.x = args.in[0];
      a.settings = in_ptr<float>(args, 1);
      a.counters = in_ptr<int64_t>(args, 2);
      a.y = out_ptr<int64_t>(args, 0);
      cuda::sample_tokens({args.stream, dtype}, a);
    }};
  };
  return k;
}

ir::Kernel multinomial() {
  ir::Kernel k{.name = "counters"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!cuda::element_type_of(n.in[0].dtype) || !cuda::element_type_of(n.out[0].dtype))
      return "elements without arithmetic";
    if (n.in_dims(0)[1] == 0) return "no classes";
    return std::nullopt;
  };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::MultinomialArgs fixed{.x_type = n.in[0].dtype,
                                      .rows = n.in_dims(0)[0],
                                      .classes = n.in_dims(0)[1],
                                      .samples = n.out_dims(0)[1],
                                      .seed = std::bit_cast<uint64_t>(n.attrs.get_float("seed", 0))};
    return ir::BoundKernel{[fixed, dtype = n.out[0].dtype](const ir::RunArgs& args) {
      cuda::MultinomialArgs a = fixed;
      a.x = args.in[0];
      a.y = args.out[0];
      cuda::multinomial({args.stream, dtype}, a);
    }};
  };
  return k;
}

}  // namespace

std::vector<CudaKernels> samples_cuda_kernels() {
  return {{"sample_tokens", {sample_tokens()}}, {"multinomial", {multinomial()}}};
}

}  // namespace trireme::ops
