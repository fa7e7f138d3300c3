// Dropout and random numbers on NVIDIA GPUs, with the same draws as on the CPU.
#include <bit>

#include "backend/cuda/elementwise/element_program.h"
#include "backend/cuda/random/random.h"
#include "ops/cuda_kernels.h"
#include "ops/elementwise/strided_loop.h"
#include "ops/kernel_forms.h"
#include "ops/random/random_ops.h"

namespace trireme::ops {
namespace {

using tensor::DType;

cuda::DropoutTrain dropout_of(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0), whole = n.attrs.get_ints("dims", x);
  const tensor::Dims begin = n.attrs.get_ints("begin", tensor::Dims(x.size(), 0));
  base::require(whole.size() == x.size() && begin.size() == x.size(), "dropout of ", tensor::to_string(x),
                " as a part of ", tensor::to_string(whole));
  const double ratio = n.attrs.get_float("ratio", 0.5), top = ratio * 4294967296.0;
  cuda::DropoutTrain s{.extent = x, .steps = dense_steps(whole)};
  for (size_t d = 0; d < x.size(); ++d) s.begin += begin[d] * s.steps[d];
  s.row_elements = dropout_row_elements(n, whole);
  s.threshold = static_cast<uint32_t>(top < 4294967295.0 ? top : 4294967295.0);
  s.op = static_cast<uint32_t>(n.attrs.get_int("op", 0));
  s.scale = static_cast<float>(1 / (1 - ratio));
  return cuda::merged(s);
}

ir::Kernel dropout_kernel() {
  ir::Kernel k{.name = "counters"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (dropout_of(n).extent.size() > cuda::kDropoutRank) return "a part along more than 8 dimensions";
    return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16});
  };
  k.prepare = [](const ir::KernelInit& init) {
    const cuda::DropoutTrain shape = dropout_of(init.node);
    const DType dtype = init.node.in[0].dtype;
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cuda::dropout_train({args.stream, dtype}, shape, in_ptr<int64_t>(args, 1), args.in[0], args.out[0]);
    }};
  };
  k.may_overwrite = 1;
  return k;
}

ir::Kernel draw_kernel(cuda::Draw draw) {
  ir::Kernel k{.name = "counters"};
  k.refuse = [draw](const ir::NodeView& n) -> ir::Refusal {
    if (!cuda::element_type_of(n.out[0].dtype)) return "elements without arithmetic";
    if (draw == cuda::Draw::bernoulli && !cuda::element_type_of(n.in[0].dtype)) return "8-bit probabilities";
    return std::nullopt;
  };
  k.prepare = [draw](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const bool is_normal = draw == cuda::Draw::normal, is_coin = draw == cuda::Draw::bernoulli;
    const cuda::DrawArgs shape{.draw = draw,
                               .seed = std::bit_cast<uint64_t>(n.attrs.get_float("seed", 0)),
                               .a = n.attrs.get_float(is_normal ? "mean" : "low", 0),
                               .b = n.attrs.get_float(is_normal ? "scale" : "high", 1),
                               .probability_type = is_coin ? n.in[0].dtype : DType::f32,
                               .n = tensor::element_count(n.out_dims(0))};
    const DType dtype = n.out[0].dtype;
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cuda::DrawArgs a = shape;
      a.probability = is_coin ? args.in[0] : nullptr;
      a.y = args.out[0];
      cuda::draw({args.stream, dtype}, a);
    }};
  };
  return k;
}

}  // namespace

std::vector<CudaKernels> random_cuda_kernels() {
  using cuda::Draw;
  return {{"dropout_train", {dropout_kernel()}},
          {"random_uniform", {draw_kernel(Draw::uniform)}},
          {"random_uniform_like", {draw_kernel(Draw::uniform)}},
          {"random_normal", {draw_kernel(Draw::normal)}},
          {"random_normal_like", {draw_kernel(Draw::normal)}},
          {"bernoulli", {draw_kernel(Draw::bernoulli)}}};
}

}  // namespace trireme::ops
