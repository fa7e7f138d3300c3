// Kernels of weight_only_linear on NVIDIA GPUs: few rows stream the stored weights, for more these become
// floats.
#include <algorithm>

#include "backend/cuda/dense/gemm.h"
#include "backend/cuda/dense/gemm_finish.h"
#include "backend/cuda/quant/quantized_rows.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/weight_only/weight_only.h"

namespace trireme::ops {
namespace {

using tensor::DType;

cuda::QuantizedArgs fixed_of(const WeightOnlyExtents& e) {
  return {.rows = e.n, .k = e.k, .group = e.form.group, .bits = e.form.bits};
}
cuda::QuantizedArgs with_data(cuda::QuantizedArgs a, const ir::RunArgs& args, size_t operands) {
  a.x = args.in[kWoX];
  a.w = in_ptr<uint8_t>(args, kWoWeights);
  a.scale = in_ptr<float>(args, kWoScale);
  a.zero = opt_ptr<int8_t>(args, kWoZero, operands);
  a.bias = opt_ptr<uint8_t>(args, kWoBias, operands);
  a.y = args.out[0];
  return a;
}

ir::Refusal refuse_float(const ir::NodeView& n) {
  if (ir::Refusal no = refuse_dtype(n, kWoWeights, {DType::u8})) return no;
  return refuse_dtype(n, kWoX, {DType::f32, DType::f16, DType::bf16});
}

/// For up to 16 rows, where reading the weights takes most of the time.
ir::Kernel streamed() {
  auto refuse = [](const ir::NodeView& n) -> ir::Refusal {
    const int64_t rows = weight_only_extents(n).rows;
    if (rows > cuda::kQuantizedBatch) return base::concat(rows, " rows, more than 16");
    return refuse_float(n);
  };
  auto prepare = [](const ir::KernelInit& init) {
    const WeightOnlyExtents e = weight_only_extents(init.node);
    cuda::QuantizedArgs fixed = fixed_of(e);
    fixed.batch = static_cast<int>(e.rows);
    auto run = [fixed, operands = init.node.in.size(),
                dtype = init.node.in[kWoX].dtype](const ir::RunArgs& args) {
      cuda::quantized_rows({args.stream, dtype}, with_data(fixed, args, operands));
    };
    return ir::BoundKernel{run};
  };
  return {.name = "streamed", .refuse = refuse, .prepare = prepare};
}

/// Converts panels of weights to floats and multiplies by each; the bias is added in a pass afterwards.
ir::Kernel dequantized() {
  auto prepare = [](const ir::KernelInit& init) {
    const WeightOnlyExtents e = weight_only_extents(init.node);
    const DType dtype = init.node.in[kWoX].dtype;
    const int64_t row_bytes = tensor::bytes_of(dtype, e.k), item = tensor::bytes_of(dtype, 1);
    const int64_t panel = weight_panel_rows(e.n, row_bytes);
    const auto plan = [&](int64_t columns) {
      return cuda::prepare_gemm({init.device, &init.packs}, {.m = e.rows,
                                                             .n = columns,
                                                             .k = e.k,
                                                             .transpose_b = true,
                                                             .ldc = e.n,
                                                             .in = dtype,
                                                             .in_b = dtype,
                                                             .out = dtype});
    };
    const auto whole = plan(panel), rest = e.n % panel == 0 ? nullptr : plan(e.n % panel);
    const int64_t before = align_up(panel * row_bytes);
    auto run = [=, fixed = fixed_of(e), operands = init.node.in.size()](const ir::RunArgs& args) {
      const cuda::On on{args.stream, dtype};
      const cuda::QuantizedArgs a = with_data(fixed, args, operands);
      auto* memory = static_cast<std::byte*>(args.workspace);
      for (int64_t first = 0; first < e.n; first += panel) {
        const int64_t count = std::min(panel, e.n - first);
        cuda::dequantize_rows(on, a, first, count, memory);
        const auto& product = count == panel ? whole : rest;
        product->run(args.stream, {.a = a.x, .b = memory, .out = static_cast<std::byte*>(a.y) + first * item},
                     memory + before);
      }
      if (a.bias != nullptr) cuda::finish_product(on, {.out = a.y, .bias = a.bias, .rows = e.rows, .n = e.n});
    };
    const int64_t room = std::max(whole->workspace_bytes(), rest == nullptr ? 0 : rest->workspace_bytes());
    return ir::BoundKernel{run, before + room};
  };
  return {.name = "dequantized", .refuse = refuse_float, .prepare = prepare};
}

}  // namespace

int64_t weight_panel_rows(int64_t n, int64_t row_bytes) {
  constexpr int64_t kPanelBytes = int64_t{64} << 20, kStep = 64;
  const int64_t rows = std::max(kPanelBytes / row_bytes / kStep, int64_t{1}) * kStep;
  return std::clamp<int64_t>(n, 1, rows);
}

std::vector<CudaKernels> weight_only_cuda_kernels() {
  return {{"weight_only_linear", {streamed(), dequantized()}}};
}

}  // namespace trireme::ops
