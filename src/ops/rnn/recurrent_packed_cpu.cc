// rnn, gru and lstm in f32 on packed products, with all their options: the inputs of all steps at once, the
// recurrence step by step.
#include "ops/rnn/recurrent_packed.h"

#include <algorithm>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/elementwise/unary_ops.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/rnn/recurrent_plan.h"
#include "tensor/absent.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

/// Packed weights of one direction. If the reset gate of a gru scales the state, the candidate's part of R is
/// a separate product.
struct Direction {
  std::shared_ptr<const PackedWeight> w, r, r_candidate;
  std::vector<float> bias;            // [gates * hidden], added to the products of the inputs
  std::vector<float> candidate_bias;  // [hidden], added to h R before the reset gate scales both
  const float* peepholes = nullptr;   // [3, hidden]: i, o, f
  const Gate* gates = nullptr;
};

struct PackedPlan {
  RecurrentPlan shape;
  std::vector<Direction> directions;
  Tensor peepholes;  // keeps their memory alive
  size_t in_count = 0, out_count = 0;
  int64_t inputs_bytes = 0, sums_bytes = 0, state_bytes = 0, gemm_bytes = 0;

  bool splits_candidate() const { return shape.gates == 3 && !shape.linear_before_reset; }
  int64_t rows() const { return shape.gates * shape.hidden; }
  int64_t workspace() const { return inputs_bytes + 2 * sums_bytes + 3 * state_bytes + gemm_bytes; }
};

ir::Refusal refuse_packed_layer(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  if (auto why = refuse_dtype(node, 0, {DType::f32})) return why;
  for (size_t i : {1, 2, 3, 7}) {
    if (node.present(i) && node.value(i) == nullptr) return base::concat("operand ", i, " is not constant");
  }
  return std::nullopt;
}

/// Packs rows [first, last) of direction d of a constant [directions, rows, columns] as a right operand.
std::shared_ptr<const PackedWeight> pack_rows(const ir::KernelInit& init, const Tensor& t, int64_t d,
                                              int64_t first, int64_t last) {
  const Tensor matrix = t.rows(d, d + 1).reshaped({t.dims()[1], t.dims()[2]});
  return pack_matrix(init, matrix.rows(first, last), true);
}

Direction pack_direction(const PackedPlan& plan, const ir::KernelInit& init, int64_t d) {
  const RecurrentPlan& p = plan.shape;
  const int64_t rows = plan.rows(), n = p.hidden;
  const Tensor& r = *init.node.value(2);
  Direction out;
  out.w = pack_rows(init, *init.node.value(1), d, 0, rows);
  out.r = pack_rows(init, r, d, 0, plan.splits_candidate() ? 2 * n : rows);
  if (plan.splits_candidate()) out.r_candidate = pack_rows(init, r, d, 2 * n, rows);
  out.bias.assign(static_cast<size_t>(rows), 0.0f);
  out.candidate_bias.assign(static_cast<size_t>(n), 0.0f);
  if (init.node.present(3) && !tensor::is_absent(*init.node.value(3))) {
    const float* b = init.node.value(3)->data<float>().data() + d * 2 * rows;
    for (int64_t j = 0; j < rows; ++j) {
      const bool apart = p.gates == 3 && p.linear_before_reset && j >= 2 * n;
      out.bias[static_cast<size_t>(j)] = apart ? b[j] : b[j] + b[rows + j];
      if (apart) out.candidate_bias[static_cast<size_t>(j - 2 * n)] = b[rows + j];
    }
  }
  out.gates = p.activations.data() + d * p.functions();
  if (plan.peepholes.defined()) out.peepholes = plan.peepholes.data<float>().data() + d * 3 * n;
  return out;
}

std::shared_ptr<const PackedPlan> make_packed_plan(const ir::KernelInit& init, size_t gates) {
  auto plan = std::make_shared<PackedPlan>();
  plan->shape = plan_recurrent(init.node, gates);
  plan->in_count = init.node.in.size();
  plan->out_count = init.node.out.size();
  const RecurrentPlan& p = plan->shape;
  if (init.node.present(7)) plan->peepholes = *init.node.value(7);
  for (int64_t d = 0; d < p.directions; ++d) plan->directions.push_back(pack_direction(*plan, init, d));
  plan->inputs_bytes = align_up(p.seq * p.batch * plan->rows() * 4);
  plan->sums_bytes = align_up(p.batch * plan->rows() * 4);
  plan->state_bytes = align_up(p.batch * p.hidden * 4);
  size_t gemm = cpu::gemm_workspace_bytes(p.seq * p.batch, p.input, plan->rows(), init.threads);
  for (const int64_t columns : {plan->rows(), 2 * p.hidden, p.hidden})
    gemm = std::max(gemm, cpu::gemm_workspace_bytes(p.batch, p.hidden, columns, init.threads));
  plan->gemm_bytes = align_up(static_cast<int64_t>(gemm));
  return plan;
}

/// y = gate(clamped y) for n values.
void activate(const RecurrentPlan& p, const Gate& gate, float* y, int64_t n) {
  if (p.clip > 0) {
    const float most = static_cast<float>(p.clip);
    for (int64_t j = 0; j < n; ++j) y[j] = std::clamp(y[j], -most, most);
  }
  const auto vectors = [&](cpu::UnaryOp op) { cpu::unary_tile(op)(y, y, static_cast<size_t>(n), {}); };
  switch (gate.kind) {
    case GateKind::sigmoid: return vectors(cpu::UnaryOp::sigmoid_);
    case GateKind::tanh: return vectors(cpu::UnaryOp::tanh_);
    case GateKind::relu: return vectors(cpu::UnaryOp::relu_);
    default:
      for (int64_t j = 0; j < n; ++j) y[j] = static_cast<float>(apply(gate, double(y[j])));
  }
}

/// The memory of one batch row in one step: x and s are the products of the input and of the state [gates *
/// hidden], pre is scratch of the same size.
struct Row {
  const float* x;
  const float* s;
  float *pre, *h, *c, *reset;
};

void sum(const float* a, const float* b, float* y, int64_t n) {
  for (int64_t j = 0; j < n; ++j) y[j] = a[j] + b[j];
}

void rnn_row(const RecurrentPlan& p, const Direction& d, const Row& r) {
  sum(r.x, r.s, r.h, p.hidden);
  activate(p, d.gates[0], r.h, p.hidden);
}

/// Gates z and r of a gru, and r h if the candidate's product needs it.
void gru_gates(const RecurrentPlan& p, const Direction& d, const Row& r) {
  const int64_t n = p.hidden;
  sum(r.x, r.s, r.pre, 2 * n);
  activate(p, d.gates[0], r.pre, 2 * n);
  if (p.linear_before_reset) return;
  for (int64_t j = 0; j < n; ++j) r.reset[j] = r.pre[n + j] * r.h[j];
}

/// The candidate and the new state; `product` is the product with the candidate's part of R.
void gru_state(const RecurrentPlan& p, const Direction& d, const Row& r, const float* product) {
  const int64_t n = p.hidden;
  const float *z = r.pre, *reset = r.pre + n, *bias = d.candidate_bias.data();
  float* candidate = r.pre + 2 * n;
  if (p.linear_before_reset) {
    for (int64_t j = 0; j < n; ++j) candidate[j] = r.x[2 * n + j] + reset[j] * (product[j] + bias[j]);
  } else {
    sum(r.x + 2 * n, product, candidate, n);
  }
  activate(p, d.gates[1], candidate, n);
  for (int64_t j = 0; j < n; ++j) r.h[j] = candidate[j] + z[j] * (r.h[j] - candidate[j]);
}

void add_peephole(const Direction& d, int64_t which, const float* c, float* gate, int64_t n) {
  if (d.peepholes == nullptr) return;
  for (int64_t j = 0; j < n; ++j) gate[j] += d.peepholes[which * n + j] * c[j];
}

/// The gates are in the order i, o, f, c.
void lstm_row(const RecurrentPlan& p, const Direction& d, const Row& r) {
  const int64_t n = p.hidden;
  float *i = r.pre, *o = r.pre + n, *f = r.pre + 2 * n, *candidate = r.pre + 3 * n;
  sum(r.x, r.s, r.pre, 4 * n);
  add_peephole(d, 0, r.c, i, n);
  activate(p, d.gates[0], i, n);
  if (p.input_forget) {
    for (int64_t j = 0; j < n; ++j) f[j] = 1 - i[j];
  } else {
    add_peephole(d, 2, r.c, f, n);
    activate(p, d.gates[0], f, n);
  }
  activate(p, d.gates[1], candidate, n);
  for (int64_t j = 0; j < n; ++j) r.c[j] = f[j] * r.c[j] + i[j] * candidate[j];
  add_peephole(d, 1, r.c, o, n);
  activate(p, d.gates[0], o, n);
  RecurrentPlan unclipped = {};  // the function of the state is not clamped
  std::copy_n(r.c, n, candidate);
  activate(unclipped, d.gates[2], candidate, n);
  for (int64_t j = 0; j < n; ++j) r.h[j] = o[j] * candidate[j];
}

/// Buffers of one launch: products of the inputs [seq * batch, rows] in the order of x, products of the state
/// and gates [batch, rows], states [batch, hidden].
struct PackedScratch {
  float *inputs, *sums, *pre, *h, *c, *reset;
  void* gemm;
};

class Walk {
 public:
  Walk(const PackedPlan& plan, int64_t direction, const PackedScratch& scratch, const ir::RunArgs& args)
      : plan_(plan),
        p_(plan.shape),
        d_(plan.directions[static_cast<size_t>(direction)]),
        direction_(direction),
        s_(scratch),
        args_(args),
        pool_(cpu::pool_of(args.stream)),
        lengths_(opt_ptr<int32_t>(args, 4, plan.in_count)),
        y_(plan.out_count > 0 ? out_ptr<float>(args, 0) : nullptr) {}

  void run() {
    multiply({in_ptr<float>(args_, 0), p_.seq * p_.batch, p_.input, *d_.w, s_.inputs, d_.bias.data()});
    load(opt_ptr<float>(args_, 5, plan_.in_count), s_.h);
    if (p_.gates == 4) load(opt_ptr<float>(args_, 6, plan_.in_count), s_.c);
    // In a reversed direction, shorter rows start later; in the other one they end earlier.
    for (int64_t i = 0; i < p_.seq; ++i) step(p_.is_reversed(direction_) ? p_.seq - 1 - i : i);
    if (plan_.out_count > 1) store(s_.h, out_ptr<float>(args_, 1));
    if (plan_.out_count > 2 && p_.gates == 4) store(s_.c, out_ptr<float>(args_, 2));
  }

 private:
  /// y [m, columns] = a [m, k] times packed weights; rows of y have room for all gates.
  struct Product {
    const float* a;
    int64_t m, k;
    const PackedWeight& b;
    float* y;
    const float* bias = nullptr;
  };

  void multiply(const Product& p) const {
    cpu::GemmArgs call{
        .m = p.m, .a = p.a, .lda = p.k, .b = p.b.matrix, .c = p.y, .ldc = plan_.rows(), .epilogue = {}};
    call.epilogue.bias = p.bias;
    cpu::gemm(call, s_.gemm, pool_);
  }

  void step(int64_t t) const {
    const int64_t n = p_.hidden;
    multiply({s_.h, p_.batch, n, *d_.r, s_.sums});
    if (p_.gates == 3) {
      for_rows(t, [&](const Row& r, int64_t) { gru_gates(p_, d_, r); });
      if (plan_.splits_candidate()) multiply({s_.reset, p_.batch, n, *d_.r_candidate, s_.sums + 2 * n});
    }
    for_rows(t, [&](const Row& r, int64_t b) {
      if (p_.gates == 1) rnn_row(p_, d_, r);
      if (p_.gates == 3) gru_state(p_, d_, r, r.s + 2 * n);
      if (p_.gates == 4) lstm_row(p_, d_, r);
      if (y_ != nullptr) std::copy_n(r.h, n, y_ + p_.y_at(t, direction_, b));
    });
    if (y_ == nullptr || lengths_ == nullptr) return;
    for (int64_t b = 0; b < p_.batch; ++b) {
      if (t >= lengths_[b]) std::fill_n(y_ + p_.y_at(t, direction_, b), n, 0.0f);
    }
  }

  /// Calls visit(row, b) for the batch rows that have a step t.
  template <class Visit>
  void for_rows(int64_t t, const Visit& visit) const {
    const int64_t n = p_.hidden, rows = plan_.rows();
    pool_.for_range(p_.batch, grain_for(20.0 * double(rows)), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        if (lengths_ != nullptr && t >= lengths_[b]) continue;
        const int64_t at = p_.x_at(t, b) / p_.input;
        visit({s_.inputs + at * rows, s_.sums + b * rows, s_.pre + b * rows, s_.h + b * n, s_.c + b * n,
               s_.reset + b * n},
              b);
      }
    });
  }

  void load(const float* initial, float* state) const {
    for (int64_t b = 0; b < p_.batch; ++b) {
      if (initial == nullptr)
        std::fill_n(state + b * p_.hidden, p_.hidden, 0.0f);
      else
        std::copy_n(initial + p_.state_at(direction_, b), p_.hidden, state + b * p_.hidden);
    }
  }

  void store(const float* state, float* to) const {
    if (to == nullptr) return;
    for (int64_t b = 0; b < p_.batch; ++b)
      std::copy_n(state + b * p_.hidden, p_.hidden, to + p_.state_at(direction_, b));
  }

  const PackedPlan& plan_;
  const RecurrentPlan& p_;
  const Direction& d_;
  const int64_t direction_;
  const PackedScratch& s_;
  const ir::RunArgs& args_;
  base::ThreadPool& pool_;
  const int32_t* lengths_;
  float* y_;
};

}  // namespace

ir::Kernel recurrent_packed_kernel(size_t gates) {
  ir::Kernel kernel{.name = "packed_steps", .refuse = refuse_packed_layer};
  kernel.prepare = [gates](const ir::KernelInit& init) {
    const auto plan = make_packed_plan(init, gates);
    ir::BoundKernel bound{.workspace_bytes = plan->workspace(),
                          .unread_inputs = (1u << 1) | (1u << 2) | (1u << 3) | (1u << 7)};
    for (const size_t i : {1, 2, 3, 7}) {
      if (init.node.present(i) && tensor::is_absent(*init.node.value(i))) return bound;
    }
    bound.run = [plan](const ir::RunArgs& args) {
      check_lengths(plan->shape, opt_ptr<int32_t>(args, kLengths, plan->in_count), args.status);
      std::byte* at = static_cast<std::byte*>(args.workspace);
      const auto take = [&](int64_t bytes) {
        std::byte* part = at;
        at += bytes;
        return reinterpret_cast<float*>(part);
      };
      PackedScratch s{};
      s.inputs = take(plan->inputs_bytes);
      s.sums = take(plan->sums_bytes);
      s.pre = take(plan->sums_bytes);
      s.h = take(plan->state_bytes);
      s.c = take(plan->state_bytes);
      s.reset = take(plan->state_bytes);
      s.gemm = at;
      // Initialised once, because products read all rows, also those that do not write theirs any more.
      if (plan->splits_candidate()) std::fill_n(s.reset, plan->shape.batch * plan->shape.hidden, 0.0f);
      for (int64_t d = 0; d < plan->shape.directions; ++d) Walk(*plan, d, s, args).run();
    };
    return bound;
  };
  return kernel;
}

}  // namespace trireme::ops
