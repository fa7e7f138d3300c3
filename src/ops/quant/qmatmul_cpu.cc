// qmatmul and matmul_integer on CPU: the right operand of each batch is packed, once for the model where it
// is constant and in each run elsewhere, then multiplied as weights are.
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
#include "tensor/absent.h"

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

// matmul_integer: exact sums whose zero points are operands, known in each run only.
/// Zero point of an operand: absent (0), one value, or one per row of `a` or column of `b`.
struct ZeroPoints {
  bool per_row = false;
  bool given = false;
};

ZeroPoints zero_points_of(const ir::NodeView& node, size_t i) {
  return {.per_row = node.present(i) && node.in[i].shape.elements().value_or(1) > 1,
          .given = node.present(i)};
}

template <class A, class B>
void run_integer(const MatmulShape& s, ZeroPoints za, ZeroPoints zb, const ir::RunArgs& args) {
  const A* a = in_ptr<A>(args, 0);
  const B* b = in_ptr<B>(args, 1);
  const A* zero_a = za.given ? in_ptr<A>(args, 2) : nullptr;
  const B* zero_b = zb.given ? in_ptr<B>(args, 3) : nullptr;
  int32_t* y = out_ptr<int32_t>(args, 0);
  cpu::pool_of(args.stream).for_range(s.batches() * s.m, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const size_t batch = static_cast<size_t>(row / s.m);
      const A* x = a + s.a_offset[batch] + row % s.m * s.k;
      const B* w = b + s.b_offset[batch];
      const int32_t az = zero_a == nullptr ? 0 : zero_a[za.per_row ? row % s.m : 0];
      int32_t* out = y + row * s.n;
      for (int64_t j = 0; j < s.n; ++j) out[j] = 0;
      for (int64_t l = 0; l < s.k; ++l) {
        const int32_t factor = x[l] - az;
        for (int64_t j = 0; j < s.n; ++j) {
          const int32_t bz = zero_b == nullptr ? 0 : zero_b[zb.per_row ? j : 0];
          out[j] += factor * (w[l * s.n + j] - bz);
        }
      }
    }
  });
}

ir::BoundKernel prepare_plain_integer(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const MatmulShape shape = matmul_shape(node.in_dims(0), node.in_dims(1));
  const ZeroPoints za = zero_points_of(node, 2), zb = zero_points_of(node, 3);
  auto bind = [&](auto run) {
    return ir::BoundKernel{[shape, za, zb, run](const ir::RunArgs& args) { run(shape, za, zb, args); }};
  };
  const bool a_signed = node.in[0].dtype == DType::i8, b_signed = node.in[1].dtype == DType::i8;
  if (a_signed) return b_signed ? bind(run_integer<int8_t, int8_t>) : bind(run_integer<int8_t, uint8_t>);
  return b_signed ? bind(run_integer<uint8_t, int8_t>) : bind(run_integer<uint8_t, uint8_t>);
}

ir::Refusal refuse_not_8_bit(const ir::NodeView& node) {
  for (size_t i : {0, 1}) {
    if (auto why = refuse_dtype(node, i, {DType::i8, DType::u8})) return why;
  }
  return std::nullopt;
}

ir::Refusal refuse_packed_integer(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  if (auto why = refuse_not_8_bit(node)) return why;
  if (zero_points_of(node, 2).per_row) return "each row has a zero point of its own";
  return std::nullopt;
}

/// The constant right operand of all batches, packed; null if it is none.
struct PackedRight {
  tensor::Tensor memory;
  cpu::PackedQuantMatrix matrix;
};

struct IntegerPlan {
  MatmulShape shape;  // rows of all batches count as one batch's where the right operand is one matrix
  ZeroPoints right_zero;
  bool a_signed = false, b_signed = false, has_left_zero = false, is_constant = false;
  size_t packed_bytes = 0, column_bytes = 0, gemm_bytes = 0;
  std::shared_ptr<const PackedRight> right;

  size_t workspace_bytes() const { return packed_bytes + 3 * column_bytes + gemm_bytes + 64; }
};

cpu::QuantMatrixB right_of(const IntegerPlan& p, const void* data) {
  return {
      .data = data, .is_signed = p.b_signed, .taps = 1, .run = p.shape.k, .n = p.shape.n, .ld = p.shape.n};
}

IntegerPlan integer_plan(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  IntegerPlan p{.shape = matmul_shape(node.in_dims(0), node.in_dims(1)),
                .right_zero = zero_points_of(node, 3)};
  p.a_signed = node.in[0].dtype == DType::i8;
  p.b_signed = node.in[1].dtype == DType::i8;
  p.has_left_zero = node.present(2);
  p.is_constant = node.value(1) != nullptr && node.in_dims(1).size() <= 2;
  if (node.in_dims(1).size() <= 2) {
    p.shape.m *= p.shape.batches();
    p.shape.a_offset.resize(1);
    p.shape.b_offset.resize(1);
  }
  p.packed_bytes = p.is_constant ? 0 : cpu::align64(cpu::packed_quant_bytes(1, p.shape.k, p.shape.n));
  p.column_bytes = cpu::align64(static_cast<size_t>(p.shape.n) * 4);
  const cpu::PackedQuantMatrix b{
      .run = p.shape.k, .n = p.shape.n, .depth = p.shape.k, .isa = cpu::best_isa()};
  p.gemm_bytes = cpu::align64(cpu::qgemm_workspace_bytes(p.shape.m, b, init.threads));
  return p;
}

/// A zero point of `count` (1 or more) as i32.
int32_t zero_at(const void* zeros, bool is_signed, int64_t i) {
  if (zeros == nullptr) return 0;
  return is_signed ? static_cast<const int8_t*>(zeros)[i] : static_cast<const uint8_t*>(zeros)[i];
}

void run_packed_integer(const IntegerPlan& p, const ir::RunArgs& args) {
  char* memory = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(args.workspace) + 63) & ~uintptr_t{63});
  int32_t* offsets = reinterpret_cast<int32_t*>(memory + p.packed_bytes);
  int32_t* row_factors = reinterpret_cast<int32_t*>(memory + p.packed_bytes + p.column_bytes);
  int32_t* zeros = reinterpret_cast<int32_t*>(memory + p.packed_bytes + 2 * p.column_bytes);
  const void* right_zero = p.right_zero.given ? args.in[3] : nullptr;
  for (int64_t j = 0; j < p.shape.n; ++j)
    zeros[j] = zero_at(right_zero, p.b_signed, p.right_zero.per_row ? j : 0);
  cpu::QuantGemmArgs call{.m = p.shape.m, .lda = p.shape.k, .ldc = p.shape.n};
  call.input = {.is_signed = p.a_signed,
                .zero = zero_at(p.has_left_zero ? args.in[2] : nullptr, p.a_signed, 0)};
  call.epilogue.output = cpu::QuantOutput::s32;
  call.epilogue.offsets = offsets;
  for (size_t batch = 0; batch < p.shape.a_offset.size(); ++batch) {
    call.a = static_cast<const char*>(args.in[0]) + p.shape.a_offset[batch];
    call.b = p.right != nullptr
                 ? p.right->matrix
                 : cpu::pack_quant_b(
                       right_of(p, static_cast<const char*>(args.in[1]) + p.shape.b_offset[batch]), memory);
    const bool by_row = cpu::quant_offsets(call.b, call.input, nullptr, zeros, {offsets, row_factors});
    call.epilogue.row_factors = by_row ? row_factors : nullptr;
    call.c = out_ptr<int32_t>(args, 0) + static_cast<int64_t>(batch) * p.shape.m * p.shape.n;
    cpu::qgemm(call, memory + p.packed_bytes + 3 * p.column_bytes, cpu::pool_of(args.stream));
  }
}

ir::BoundKernel prepare_packed_integer(const ir::KernelInit& init) {
  IntegerPlan plan = integer_plan(init);
  ir::BoundKernel bound{.workspace_bytes = static_cast<int64_t>(plan.workspace_bytes()),
                        .unread_inputs = plan.is_constant ? 2u : 0u};
  if (plan.is_constant) {
    const tensor::Tensor& b = *init.node.value(1);
    if (tensor::is_absent(b)) return bound;
    const std::string format = base::concat("qgemm integer ", cpu::to_string(cpu::best_isa()));
    plan.right = init.packs.get<PackedRight>(ir::pack_key(b, format), [&] {
      auto made = std::make_shared<PackedRight>();
      made->memory = tensor::Tensor::empty(
          DType::u8, {static_cast<int64_t>(cpu::packed_quant_bytes(1, plan.shape.k, plan.shape.n))});
      made->matrix = cpu::pack_quant_b(right_of(plan, b.raw()), made->memory.mutable_raw());
      return made;
    });
  }
  bound.run = [p = std::make_shared<const IntegerPlan>(std::move(plan))](const ir::RunArgs& args) {
    run_packed_integer(*p, args);
  };
  return bound;
}

}  // namespace

std::vector<ir::Kernel> qmatmul_cpu_kernels() {
  return {{.name = "packed_8_bit", .refuse = refuse, .prepare = prepare}};
}

std::vector<ir::Kernel> matmul_integer_cpu_kernels() {
  return {{.name = "packed_8_bit", .refuse = refuse_packed_integer, .prepare = prepare_packed_integer},
          {.name = "reference",
           .is_reference = true,
           .refuse = refuse_not_8_bit,
           .prepare = prepare_plain_integer}};
}

}  // namespace trireme::ops
