// Kernels of 8-bit floats on NVIDIA GPUs.
#include "backend/cuda/dense/float8.h"
#include "ops/cuda_kernels.h"
#include "ops/dense/gemm_cuda.h"
#include "ops/kernel_forms.h"
#include "ops/quant/float8s.h"

namespace trireme::ops {
namespace {

using tensor::DType;

ir::Refusal refuse_rows(const ir::NodeView& node) {
  return refuse_dtype(node, 0, {DType::f32, DType::f16, DType::bf16});
}

cuda::Float8Args with_results(cuda::Float8Args a, const ir::RunArgs& args, Float8Results to, bool has_sums) {
  a.x = args.in[0];
  if (to.rows >= 0) {
    a.row_codes = out_ptr<uint8_t>(args, static_cast<size_t>(to.rows));
    a.row_scales = out_ptr<float>(args, static_cast<size_t>(to.rows) + 1);
  }
  if (to.columns >= 0) {
    a.column_codes = out_ptr<uint8_t>(args, static_cast<size_t>(to.columns));
    a.column_scales = out_ptr<float>(args, static_cast<size_t>(to.columns) + 1);
    if (has_sums) a.column_sums = out_ptr<float>(args, static_cast<size_t>(to.columns) + 2);
  }
  return a;
}

ir::Kernel quantizer_kernel(Float8Results to) {
  auto prepare = [to](const ir::KernelInit& init) {
    const Float8Extents e = float8_extents(init.node);
    const cuda::Float8Args fixed{.rows = e.rows, .n = e.n, .e5m2 = e.e5m2, .padded = e.padded()};
    auto run = [fixed, to, has_sums = to.has_sums(init.node),
                type = init.node.in[0].dtype](const ir::RunArgs& args) {
      const cuda::On on{args.stream, type};
      const cuda::Float8Args a = with_results(fixed, args, to, has_sums);
      to.columns < 0 ? cuda::float8_rows(on, a) : cuda::float8_columns(on, a, args.workspace);
    };
    const int64_t room = to.columns < 0 ? 0 : cuda::float8_columns_workspace_bytes(e.rows, e.n);
    return ir::BoundKernel{run, room};
  };
  return {.name = to.columns < 0 ? "rows" : "tiles", .refuse = refuse_rows, .prepare = prepare};
}

ir::Kernel values_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const Float8Extents e = float8_extents(init.node);
    const cuda::Float8ValuesArgs fixed{
        .rows = e.rows, .n = e.n, .e5m2 = init.node.in[0].dtype == DType::f8e5m2};
    auto run = [fixed, type = init.node.out[0].dtype](const ir::RunArgs& args) {
      cuda::Float8ValuesArgs a = fixed;
      a.codes = in_ptr<uint8_t>(args, 0);
      a.scales = in_ptr<float>(args, 1);
      a.y = args.out[0];
      cuda::float8_values({args.stream, type}, a);
    };
    return ir::BoundKernel{run};
  };
  return {.name = "flat", .prepare = prepare};
}

/// Applies cuBLASLt's requirements for 8-bit products on every device, so that all refuse alike.
ir::Refusal refuse_product(const ir::NodeView& node) {
  for (size_t i : {kF8Bias, kF8Residual}) {
    if (node.present(i) && node.in[i].dtype != node.out[0].dtype) return "operands of different types";
  }
  const Float8Product e = float8_product_extents(node);
  if (e.k % kFloat8Align != 0 || e.n % kFloat8Align != 0)
    return base::concat("[", e.n, ", ", e.k, "]: the library takes multiples of 16");
  if (node.in[kF8A].dtype == DType::f8e5m2 && node.in[kF8B].dtype == DType::f8e5m2)
    return "no product of two E5M2 operands";
  return std::nullopt;
}

ir::BoundKernel prepare_product(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const Float8Product e = float8_product_extents(node);
  const ActivationSpec act = activation_of(node.attrs);
  cuda::GemmShape shape{.m = e.m, .n = e.n, .k = e.k, .transpose_b = true};
  shape.in = node.in[kF8A].dtype;
  shape.in_b = node.in[kF8B].dtype;
  shape.out = node.out[0].dtype;
  shape.scales = cuda::Scales::vectors;
  shape.finish.bias = node.present(kF8Bias);
  shape.finish.residual = node.present(kF8Residual);
  shape.finish.residual_row = shape.finish.residual ? shape.n : 0;
  shape.finish.residual_column = shape.finish.residual ? 1 : 0;
  shape.finish.act = activation_form(act);
  shape.finish.act_before_residual = act.before_residual;
  const std::shared_ptr<const cuda::GemmPlan> plan = cuda::prepare_gemm({init.device, &init.packs}, shape);
  auto run = [plan, operands = node.in.size()](const ir::RunArgs& args) {
    plan->run(args.stream,
              {.a = args.in[kF8A],
               .b = args.in[kF8B],
               .out = args.out[0],
               .bias = opt_ptr<uint8_t>(args, kF8Bias, operands),
               .residual = opt_ptr<uint8_t>(args, kF8Residual, operands),
               .scale_a = in_ptr<float>(args, kF8ScaleA),
               .scale_b = in_ptr<float>(args, kF8ScaleB)},
              args.workspace);
  };
  return {run, plan->workspace_bytes()};
}

}  // namespace

std::vector<CudaKernels> float8s_cuda_kernels() {
  return {{"float8_rows", {quantizer_kernel(kF8Rows)}},
          {"float8_columns", {quantizer_kernel(kF8Columns)}},
          {"float8_both", {quantizer_kernel(kF8Both)}},
          {"float8_values", {values_kernel()}},
          {"float8_product", {{.name = "gemm_f8", .refuse = refuse_product, .prepare = prepare_product}}}};
}

}  // namespace trireme::ops
