// Sampling of tokens and classes on NVIDIA GPUs.
#include <bit>

#include "backend/cuda/elementwise/element_program.h"
#include "backend/cuda/random/sample.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

ir::Kernel sample_kernel() {
  ir::Kernel k{.name = "searched"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.in_dims(0)[1] == 0 || n.in_dims(0)[1] > INT32_MAX) return "no tokens, or more than 2^31";
    return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16});
  };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const bool has_penalties = n.in.size() > 3, wants_logarithm = n.out.size() > 1;
    const cuda::SampleArgs fixed{.rows = n.in_dims(0)[0],
                                 .n = n.in_dims(0)[1],
                                 .columns = n.in_dims(1)[1],
                                 .places = has_penalties ? n.in_dims(3)[0] : 0};
    const auto run = [=, dtype = n.in[0].dtype](const ir::RunArgs& args) {
      cuda::SampleArgs a = fixed;
      a.x = args.in[0];
      a.settings = in_ptr<float>(args, 1);
      a.counters = in_ptr<int64_t>(args, 2);
      a.seen = has_penalties ? in_ptr<int32_t>(args, 3) : nullptr;
      a.row_places = has_penalties ? in_ptr<int32_t>(args, 4) : nullptr;
      a.y = out_ptr<int64_t>(args, 0);
      a.log_probability = wants_logarithm ? out_ptr<float>(args, 1) : nullptr;
      cuda::sample_tokens({args.stream, dtype}, a, args.workspace);
    };
    return ir::BoundKernel{run, cuda::sample_workspace_bytes(fixed.rows, fixed.n)};
  };
  return k;
}

ir::Kernel edit_kernel() {
  ir::Kernel k{.name = "rows", .may_overwrite = 1};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16});
  };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::EditArgs fixed{
        .rows = n.in_dims(0)[0], .n = n.in_dims(0)[1], .words = n.in_dims(1)[1], .most = n.in_dims(2)[1]};
    return ir::BoundKernel{[fixed, dtype = n.in[0].dtype](const ir::RunArgs& args) {
      cuda::EditArgs a = fixed;
      a.x = args.in[0];
      a.allowed = in_ptr<int32_t>(args, 1);
      a.ids = in_ptr<int32_t>(args, 2);
      a.biases = in_ptr<float>(args, 3);
      a.y = args.out[0];
      cuda::edit_logits({args.stream, dtype}, a);
    }};
  };
  return k;
}

ir::Kernel count_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const tensor::Dims seen = init.node.in_dims(0);
    const cuda::TokenArgs fixed{.count = init.node.in_dims(1)[0], .extent = seen[0], .n = seen[1]};
    return ir::BoundKernel{[fixed](const ir::RunArgs& args) {
      const int64_t bytes = fixed.extent * fixed.n * static_cast<int64_t>(sizeof(int32_t));
      // Programs update the tensor in place; otherwise it is copied first.
      if (args.out[0] != args.in[0]) args.stream.copy(args.out[0], args.in[0], bytes);
      cuda::TokenArgs a = fixed;
      a.at = in_ptr<int32_t>(args, 1);
      a.fault = args.fault;
      a.step = args.step;
      cuda::count_tokens(args.stream, a, out_ptr<int32_t>(args, 0), in_ptr<int64_t>(args, 2));
    }};
  };
  return {.name = "rows", .refuse = {}, .prepare = prepare};
}

ir::Kernel take_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const cuda::TokenArgs fixed{.count = init.node.in_dims(2)[0], .extent = init.node.in_dims(1)[0]};
    return ir::BoundKernel{[fixed](const ir::RunArgs& args) {
      cuda::TokenArgs a = fixed;
      a.at = in_ptr<int32_t>(args, 2);
      a.fault = args.fault;
      a.step = args.step;
      cuda::take_tokens(args.stream, a, in_ptr<int64_t>(args, 0), in_ptr<int64_t>(args, 1),
                        out_ptr<int64_t>(args, 0));
    }};
  };
  return {.name = "rows", .refuse = {}, .prepare = prepare};
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
  return {{"sample_tokens", {sample_kernel()}},
          {"edit_logits", {edit_kernel()}},
          {"count_tokens", {count_kernel()}},
          {"take_tokens", {take_kernel()}},
          {"multinomial", {multinomial()}}};
}

}  // namespace trireme::ops
