// Binds dense ops to products of the device.
#include "ops/dense/gemm_cuda.h"

#include "ops/dense/batch_strides.h"

namespace trireme::ops {

using tensor::DType;

cuda::ActivationForm activation_form(const ActivationSpec& s) {
  return {s.kind, s.lo, s.hi, s.alpha, s.beta};
}

ir::BoundKernel bind_gemm(const ir::KernelInit& init, const cuda::GemmShape& shape,
                          const GemmOperands& operands) {
  const std::shared_ptr<const cuda::GemmPlan> plan = cuda::prepare_gemm({init.device, &init.packs}, shape);
  auto run = [plan, operands](const ir::RunArgs& args) {
    auto at = [&](int i) { return i < 0 ? nullptr : args.in[i]; };
    plan->run(
        args.stream,
        {.a = at(operands.a),
         .b = at(operands.b),
         .out = args.out[0],
         .bias = at(operands.bias),
         .residual = at(operands.residual),
         .aux = operands.aux_out >= 0 ? args.out[operands.aux_out] : const_cast<void*>(at(operands.aux)),
         .sums = operands.sums < 0 ? nullptr : args.out[operands.sums]},
        args.workspace);
  };
  return {run, plan->workspace_bytes()};
}

ir::Refusal refuse_products(const ir::NodeView& node, bool with_f64) {
  const DType type = node.in[0].dtype;
  if (type != DType::f32 && type != DType::f16 && type != DType::bf16 && !(with_f64 && type == DType::f64))
    return base::concat("operand 0 is ", name_of(type));
  for (size_t i = 1; i < node.in.size(); ++i) {
    if (node.present(i) && node.in[i].dtype != type) return "operands of different types";
  }
  return std::nullopt;
}

bool set_batches(cuda::GemmShape& shape, const MatmulShape& batches) {
  const std::optional<BatchStrides> s = batch_strides(batches);
  if (!s) return false;
  shape.outer = s->outer;
  shape.inner = s->inner;
  shape.outer_a = s->a_outer;
  shape.outer_b = s->b_outer;
  shape.inner_a = s->a_inner;
  shape.inner_b = s->b_inner;
  shape.inner_c = shape.m * shape.n;
  shape.outer_c = s->inner * shape.m * shape.n;
  return true;
}

}  // namespace trireme::ops
