// Kernels of products of few rows on NVIDIA GPUs: they read weights once and include norm, residual and gate.
#include "backend/cuda/quant/row_products.h"

#include "ops/cuda_kernels.h"
#include "ops/dense/gemm_cuda.h"
#include "ops/dense/row_linear.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// Checks rows and depth against the kernels' limits; `bits` 0 means weights of x's type.
ir::Refusal refuse_extents(int64_t rows, int64_t k, DType type, int bits) {
  // Larger batches use the library; a fixed order of sums for all batches requires it for small ones too.
  if (cuda::gemm_options_from_environment().fixed_order) return "sums have one order for any number of rows";
  if (rows > cuda::kMostProductRows) return base::concat(rows, " rows, more than ", cuda::kMostProductRows);
  const int64_t each = bits == 0 ? 16 / tensor::bytes_of(type, 1) : 16 * 8 / bits;
  if (k == 0 || k % each != 0) return base::concat("a depth of ", k, " is no multiple of ", each);
  return std::nullopt;
}

ir::Refusal refuse_row_linear(const ir::NodeView& node) {
  if (auto why = refuse_dtype(node, kRlX, {DType::f32, DType::f16, DType::bf16})) return why;
  const DType type = node.in[kRlX].dtype;
  const RowLinearPlan p = plan_row_linear(node);
  if (auto why = refuse_extents(p.rows, p.k, type, p.bits)) return why;
  if (!node.present(kRlNorm)) return std::nullopt;
  if (node.in[kRlNorm].dtype != type && node.in[kRlNorm].dtype != DType::f32)
    return base::concat("the norm's scale is ", name_of(node.in[kRlNorm].dtype));
  const int64_t room = type == DType::f16 && p.bits == 0 ? cuda::kNormTileBytes : cuda::kNormRowBytes;
  if (tensor::bytes_of(type, p.rows * p.k) > room) return "normalised rows do not fit a block";
  return std::nullopt;
}

const void* optional_in(const ir::RunArgs& args, const std::vector<bool>& present, size_t i) {
  return i < present.size() && present[i] ? args.in[i] : nullptr;
}

ir::BoundKernel prepare_row_linear(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const RowLinearPlan p = plan_row_linear(node);
  cuda::RowProductArgs fixed{.is_scale_f32 = node.present(kRlNorm) && node.in[kRlNorm].dtype == DType::f32,
                             .epsilon = p.epsilon,
                             .weights = {},
                             .count = static_cast<int>(p.n.size()),
                             .k = p.k,
                             .rows = static_cast<int>(p.rows),
                             .bits = p.bits,
                             .group = p.group,
                             .gated = p.gated,
                             .is_constant = true,
                             .act = activation_form(p.act),
                             .act_before_residual = p.act.before_residual};
  for (size_t i = 0; i < p.n.size(); ++i) {
    fixed.weights[i].n = p.n[i];
    fixed.is_constant = fixed.is_constant && node.value(row_linear_operand(i, kRlWeight)) != nullptr;
  }
  auto run = [fixed, present = node.is_present, type = node.in[kRlX].dtype](const ir::RunArgs& args) {
    cuda::RowProductArgs a = fixed;
    a.x = args.in[kRlX];
    a.norm_scale = optional_in(args, present, kRlNorm);
    a.residual = optional_in(args, present, kRlResidual);
    for (size_t i = 0; i < static_cast<size_t>(a.count); ++i) {
      const auto operand = [&](RowLinearWeightOperand which) {
        return optional_in(args, present, row_linear_operand(i, which));
      };
      cuda::RowWeight& w = a.weights[i];
      w.w = operand(kRlWeight);
      w.scale = static_cast<const float*>(operand(kRlScale));
      w.zero = static_cast<const int8_t*>(operand(kRlZero));
      w.bias = operand(kRlBias);
      w.y = args.out[a.gated ? 0 : i];
    }
    cuda::row_products({args.stream, type}, a);
  };
  return {run};
}

}  // namespace

std::vector<CudaKernels> row_linear_cuda_kernels() {
  return {{"row_linear", {{.name = "rows", .refuse = refuse_row_linear, .prepare = prepare_row_linear}}}};
}

}  // namespace trireme::ops
