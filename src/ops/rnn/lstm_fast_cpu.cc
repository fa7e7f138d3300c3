// The f32 LSTM on packed products: the inputs of all steps at once, the recurrence step by step.
#include <algorithm>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/elementwise/unary_ops.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/rnn/lstm_fast.h"
#include "ops/rnn/recurrent_plan.h"
#include "tensor/absent.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// Packed weights of one direction; the bias is the sum of the input's and the recurrence's biases.
struct LstmWeights {
  std::shared_ptr<const PackedWeight> w, r;
  std::vector<float> bias;  // [4 * hidden]
};

struct LstmPlan {
  RecurrentPlan shape;
  std::vector<LstmWeights> directions;
  bool is_packed = true;  ///< all of its weights have content
  size_t in_count = 0, out_count = 0;
  int64_t gates_bytes = 0, step_bytes = 0, state_bytes = 0, gemm_bytes = 0;
};

ir::Refusal refuse_packed_lstm(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  if (auto why = refuse_dtype(node, 0, {DType::f32})) return why;
  for (size_t i : {1, 2, 3}) {
    if (node.present(i) && node.value(i) == nullptr) return base::concat("operand ", i, " is not constant");
  }
  if (node.present(4)) return "sequences have lengths";
  if (node.present(7)) return "gates have peepholes";
  return refuse_lstm_options(plan_recurrent(node, 4));
}

/// Packs direction d of a constant [directions, rows, cols] as the right operand [cols, rows] of a product.
std::shared_ptr<const PackedWeight> pack_direction(const ir::KernelInit& init, const tensor::Tensor& t,
                                                   int64_t d) {
  const tensor::Tensor rows = t.rows(d, d + 1).reshaped({t.dims()[1], t.dims()[2]});
  return pack_matrix(init, rows, true);
}

std::shared_ptr<const LstmPlan> make_lstm_plan(const ir::KernelInit& init) {
  auto plan = std::make_shared<LstmPlan>();
  plan->shape = plan_recurrent(init.node, 4);
  plan->in_count = init.node.in.size();
  plan->out_count = init.node.out.size();
  const RecurrentPlan& p = plan->shape;
  const int64_t rows = 4 * p.hidden;
  for (int64_t d = 0; d < p.directions; ++d) {
    LstmWeights weights{pack_direction(init, *init.node.value(1), d),
                        pack_direction(init, *init.node.value(2), d),
                        std::vector<float>(static_cast<size_t>(rows), 0.0f)};
    const bool is_packed = weights.w != nullptr && weights.r != nullptr &&
                           !(init.node.present(3) && tensor::is_absent(*init.node.value(3)));
    plan->is_packed = plan->is_packed && is_packed;
    if (init.node.present(3) && plan->is_packed) {
      const float* b = init.node.value(3)->data<float>().data() + d * 2 * rows;
      for (int64_t j = 0; j < rows; ++j) weights.bias[static_cast<size_t>(j)] = b[j] + b[rows + j];
    }
    plan->directions.push_back(std::move(weights));
  }
  plan->gates_bytes = align_up(p.seq * p.batch * rows * 4);
  plan->step_bytes = align_up(p.batch * rows * 4);
  plan->state_bytes = align_up(p.batch * p.hidden * 4);
  const size_t inputs = cpu::gemm_workspace_bytes(p.seq * p.batch, p.input, rows, init.threads);
  const size_t steps = cpu::gemm_workspace_bytes(p.batch, p.hidden, rows, init.threads);
  plan->gemm_bytes = align_up(static_cast<int64_t>(std::max(inputs, steps)));
  return plan;
}

/// Buffers of one launch.
struct LstmScratch {
  float *gates, *step, *h, *c;
  void* gemm;
};

/// Computes new c and h from gates i, o, f, c of one batch row; `gates` is overwritten.
void update_row(float* gates, float* c, float* h, int64_t n) {
  const size_t count = static_cast<size_t>(n);
  const cpu::UnaryTile sigmoid = cpu::unary_tile(cpu::UnaryOp::sigmoid_),
                       tanh = cpu::unary_tile(cpu::UnaryOp::tanh_);
  sigmoid(gates, gates, 3 * count, {});
  tanh(gates + 3 * n, gates + 3 * n, count, {});
  const float *i = gates, *o = gates + n, *f = gates + 2 * n;
  float* candidate = gates + 3 * n;
  for (int64_t j = 0; j < n; ++j) c[j] = f[j] * c[j] + i[j] * candidate[j];
  tanh(c, candidate, count, {});
  for (int64_t j = 0; j < n; ++j) h[j] = o[j] * candidate[j];
}

/// One step of one direction: gates[t] + h R, then the cells, then the rows of the result.
void step(const LstmPlan& plan, int64_t d, int64_t t, const LstmScratch& s, const ir::RunArgs& args) {
  const RecurrentPlan& p = plan.shape;
  const int64_t n = p.hidden, rows = 4 * n;
  base::ThreadPool& pool = cpu::pool_of(args.stream);
  cpu::GemmArgs call{.m = p.batch,
                     .a = s.h,
                     .lda = n,
                     .b = plan.directions[static_cast<size_t>(d)].r->matrix,
                     .c = s.step,
                     .ldc = rows,
                     .epilogue = {}};
  call.epilogue.residual = s.gates + t * p.batch * rows;
  cpu::gemm(call, s.gemm, pool);
  float* y = plan.out_count > 0 ? out_ptr<float>(args, 0) : nullptr;
  pool.for_range(p.batch, grain_for(80.0 * double(n)), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      update_row(s.step + b * rows, s.c + b * n, s.h + b * n, n);
      if (y != nullptr) std::copy_n(s.h + b * n, n, y + p.y_at(t, d, b));
    }
  });
}

void load_initial(const RecurrentPlan& p, const float* initial, int64_t d, float* state) {
  const int64_t n = p.batch * p.hidden;
  if (initial == nullptr) {
    std::fill_n(state, n, 0.0f);
  } else {
    std::copy_n(initial + d * n, n, state);
  }
}

void run_direction(const LstmPlan& plan, int64_t d, const LstmScratch& s, const ir::RunArgs& args) {
  const RecurrentPlan& p = plan.shape;
  const LstmWeights& weights = plan.directions[static_cast<size_t>(d)];
  cpu::GemmArgs inputs{.m = p.seq * p.batch,
                       .a = in_ptr<float>(args, 0),
                       .lda = p.input,
                       .b = weights.w->matrix,
                       .c = s.gates,
                       .ldc = 4 * p.hidden,
                       .epilogue = {}};
  inputs.epilogue.bias = weights.bias.data();
  cpu::gemm(inputs, s.gemm, cpu::pool_of(args.stream));
  load_initial(p, opt_ptr<float>(args, 5, plan.in_count), d, s.h);
  load_initial(p, opt_ptr<float>(args, 6, plan.in_count), d, s.c);
  for (int64_t i = 0; i < p.seq; ++i) step(plan, d, p.is_reversed(d) ? p.seq - 1 - i : i, s, args);
  const int64_t n = p.batch * p.hidden;
  float* last_h = plan.out_count > 1 ? out_ptr<float>(args, 1) : nullptr;
  float* last_c = plan.out_count > 2 ? out_ptr<float>(args, 2) : nullptr;
  if (last_h != nullptr) std::copy_n(s.h, n, last_h + d * n);
  if (last_c != nullptr) std::copy_n(s.c, n, last_c + d * n);
}

ir::BoundKernel prepare_packed_lstm(const ir::KernelInit& init) {
  const auto plan = make_lstm_plan(init);
  ir::BoundKernel bound{
      .workspace_bytes = plan->gates_bytes + plan->step_bytes + 2 * plan->state_bytes + plan->gemm_bytes,
      .unread_inputs = (1u << 1) | (1u << 2) | (1u << 3)};
  if (!plan->is_packed) return bound;
  bound.run = [plan](const ir::RunArgs& args) {
    std::byte* at = static_cast<std::byte*>(args.workspace);
    auto take = [&](int64_t bytes) {
      std::byte* part = at;
      at += bytes;
      return reinterpret_cast<float*>(part);
    };
    LstmScratch s{};
    s.gates = take(plan->gates_bytes);
    s.step = take(plan->step_bytes);
    s.h = take(plan->state_bytes);
    s.c = take(plan->state_bytes);
    s.gemm = at;
    for (int64_t d = 0; d < plan->shape.directions; ++d) run_direction(*plan, d, s, args);
  };
  return bound;
}

}  // namespace

ir::Refusal refuse_lstm_options(const RecurrentPlan& p) {
  if (p.clip > 0) return "gates are clipped";
  if (p.input_forget) return "input and forget gates are coupled";
  if (p.batch_first) return "the batch comes first";
  for (size_t i = 0; i < p.activations.size(); ++i) {
    const GateKind want = i % 3 == 0 ? GateKind::sigmoid : GateKind::tanh;
    if (p.activations[i].kind != want) return "activations are not sigmoid, tanh, tanh";
  }
  return std::nullopt;
}

ir::Kernel lstm_packed_kernel() {
  return {.name = "packed", .refuse = refuse_packed_lstm, .prepare = prepare_packed_lstm};
}

}  // namespace trireme::ops
