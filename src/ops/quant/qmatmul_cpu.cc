// qmatmul on CPU: each run packs the right operand of each batch, then multiplies as with weights.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/device/round_up.h"
#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/quant/qgemm_s8.h"
#include "ops/dense/matmul_shape.h"
#include "ops/kernel_forms.h"
#include "ops/quant/qproduct.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using Q = QOperand;

ir::Refusal refuse(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  for (size_t i : {Q::x_scale, Q::x_zero, Q::w_scale, Q::w_zero, Q::y_scale, Q::y_zero}) {
    if (!node.present(i)) continue;
    if (node.value(i) == nullptr) return base::concat("operand ", i, " is not constant");
    if (node.value(i)->elements() != 1) return base::concat("operand ", i, " is not one value");
  }
  for (size_t i : {Q::x, Q::w}) {
    if (auto why = refuse_dtype(node, i, {DType::u8, DType::i8})) return why;
    if (node.in[i].shape.rank() < 2) return base::concat("operand ", i, " is no matrix");
    if (node.in[i + 2].dtype != node.in[i].dtype)
      return base::concat("zero point ", i + 2, " is ", name_of(node.in[i + 2].dtype));
  }
  const DType out = node.out[0].dtype;
  if (out != DType::u8 && out != DType::i8 && out != DType::f32)
    return base::concat("the result is ", name_of(out));
  const QProduct q = read_product(node, 1);
  const double step = q.to_float() ? 1 : q.y_scale;
  if (!std::isfinite(static_cast<float>(q.product_scale[0] / step))) return "a scale overflows";
  return std::nullopt;
}

/// All that does not depend on the content of the operands.
struct Plan {
  MatmulShape shape;
  QProduct q;
  bool a_signed = false, b_signed = false;
  int64_t out_bytes = 1;
  size_t packed_bytes = 0, column_bytes = 0, gemm_bytes = 0;  // of one batch; of a column vector [n]
  bool by_batch = false;                                      // threads process batches of their own

  size_t lane_bytes() const { return packed_bytes + 3 * column_bytes + gemm_bytes; }
};

Plan plan_of(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  Plan p{.shape = matmul_shape(n.in_dims(Q::x), n.in_dims(Q::w)), .q = read_product(n, 1)};
  p.a_signed = n.in[Q::x].dtype == DType::i8;
  p.b_signed = n.in[Q::w].dtype == DType::i8;
  p.out_bytes = p.q.to_float() ? 4 : 1;
  p.packed_bytes = cpu::align64(cpu::packed_quant_bytes(1, p.shape.k, p.shape.n));
  p.column_bytes = cpu::align64(static_cast<size_t>(p.shape.n) * 4);
  p.by_batch = p.shape.batches() >= 2 * init.threads;
  const cpu::PackedQuantMatrix b{
      .run = p.shape.k, .n = p.shape.n, .depth = p.shape.k, .isa = cpu::best_isa()};
  p.gemm_bytes = cpu::align64(cpu::qgemm_workspace_bytes(p.shape.m, b, p.by_batch ? 1 : init.threads));
  return p;
}

cpu::QuantEpilogue epilogue_of(const QProduct& q) {
  cpu::QuantEpilogue e;
  e.output = q.to_float()         ? cpu::QuantOutput::f32
             : q.out == DType::u8 ? cpu::QuantOutput::u8
                                  : cpu::QuantOutput::s8;
  if (!q.to_float()) {
    e.zero = q.y_zero;
    e.lo = q.lowest();
    e.hi = q.highest();
  }
  return e;
}

/// Packs and multiplies one batch; `memory` is its workspace.
void run_batch(const Plan& p, const ir::RunArgs& args, int64_t batch, char* memory, base::ThreadPool& pool) {
  const auto at = static_cast<size_t>(batch);
  int32_t* offsets = reinterpret_cast<int32_t*>(memory + p.packed_bytes);
  int32_t* row_factors = reinterpret_cast<int32_t*>(memory + p.packed_bytes + p.column_bytes);
  float* scale = reinterpret_cast<float*>(memory + p.packed_bytes + 2 * p.column_bytes);
  int32_t* zeros = reinterpret_cast<int32_t*>(scale);  // until the scales are written there
  const cpu::QuantMatrixB b{.data = static_cast<const char*>(args.in[Q::w]) + p.shape.b_offset[at],
                            .is_signed = p.b_signed,
                            .taps = 1,
                            .run = p.shape.k,
                            .n = p.shape.n,
                            .ld = p.shape.n};
  cpu::QuantGemmArgs call{.m = p.shape.m};
  call.a = static_cast<const char*>(args.in[Q::x]) + p.shape.a_offset[at];
  call.lda = p.shape.k;
  call.input = {.is_signed = p.a_signed, .zero = p.q.x_zero};
  call.b = cpu::pack_quant_b(b, memory);
  std::fill_n(zeros, p.shape.n, p.q.w_zero[0]);
  const bool by_row = cpu::quant_offsets(call.b, call.input, nullptr, zeros, {offsets, row_factors});
  const double step = p.q.to_float() ? 1 : p.q.y_scale;
  std::fill_n(scale, p.shape.n, static_cast<float>(p.q.product_scale[0] / step));
  call.c = static_cast<char*>(args.out[0]) + batch * p.shape.m * p.shape.n * p.out_bytes;
  call.ldc = p.shape.n;
  call.epilogue = epilogue_of(p.q);
  call.epilogue.offsets = offsets;
  call.epilogue.row_factors = by_row ? row_factors : nullptr;
  call.epilogue.scale = scale;
  call.epilogue.scales_below_one = std::abs(scale[0]) < 1.0f;
  cpu::qgemm(call, memory + p.packed_bytes + 3 * p.column_bytes, pool);
}

ir::BoundKernel prepare(const ir::KernelInit& init) {
  const auto plan = std::make_shared<const Plan>(plan_of(init));
  const int64_t lanes = plan->by_batch ? init.threads : 1;
  ir::BoundKernel bound{.workspace_bytes = lanes * static_cast<int64_t>(plan->lane_bytes()) + 64};
  bound.run = [plan](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    char* memory =
        reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(args.workspace) + 63) & ~uintptr_t{63});
    if (!plan->by_batch) {
      for (int64_t i = 0; i < plan->shape.batches(); ++i) run_batch(*plan, args, i, memory, pool);
      return;
    }
    cpu::run_lanes(pool, plan->shape.batches(), [&](int64_t i, int lane) {
      base::ThreadPool alone(1);
      run_batch(*plan, args, i, memory + static_cast<size_t>(lane) * plan->lane_bytes(), alone);
    });
  };
  return bound;
}

}  // namespace

std::vector<ir::Kernel> qmatmul_cpu_kernels() {
  return {{.name = "packed_8_bit", .refuse = refuse, .prepare = prepare}};
}

}  // namespace trireme::ops
