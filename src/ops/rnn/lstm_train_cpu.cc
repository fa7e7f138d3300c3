// The f32 LSTM with weights that change in every run, forward and backward through time: one product over all
// steps where the recurrence allows it, otherwise one per step.
#include <algorithm>
#include <array>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/dense/gemm_blocks.h"
#include "backend/cpu/elementwise/unary_ops.h"
#include "ops/kernel_forms.h"
#include "ops/rnn/lstm_fast.h"
#include "ops/rnn/recurrent_plan.h"

namespace trireme::ops {
namespace {

using tensor::DType;

ir::Refusal refuse_live_lstm(const ir::NodeView& node) {
  for (size_t i = 0; i < 3; ++i) {
    if (node.in[i].shape.elements().value_or(0) == 0) return "an operand has no elements";
  }
  if (auto why = refuse_dtype(node, 0, {DType::f32})) return why;
  if (node.present(kLengths)) return "sequences have lengths";
  if (node.present(kPeephole)) return "gates have peepholes";
  return refuse_lstm_options(plan_recurrent(node, 4));
}

/// The values that one direction saves, in the order of time: [seq, batch, ...].
struct LstmTape {
  float* pre;                // [4 hidden]: arguments of the gates; in the backward pass their gradients
  float* act;                // [4 hidden]: gates i, o, f and the candidate
  float* h;                  // [hidden]: state before the step
  float* c;                  // [hidden]: cell before the step
  float* tanh_c;             // [hidden]: tanh of the cell after the step
  float *dh, *dh_next, *dc;  // [batch, hidden]
  float* bias;               // [4 hidden]: sum of the input's and the recurrence's bias
  float* dx;                 // [seq, batch, input]: dx of the first of two directions
  void* gemm;
};

class Lstm {
 public:
  Lstm(const RecurrentPlan& p, int threads) : p_(p), cells_(p.batch * p.hidden), rows_(4 * p.hidden) {
    for (const cpu::BlockProduct& product :
         {inputs(nullptr, nullptr), recurrence(nullptr, nullptr), state_back(nullptr, nullptr),
          inputs_back(nullptr, nullptr), weights(nullptr, nullptr, p.input),
          weights(nullptr, nullptr, p.hidden)}) {
      gemm_bytes_ =
          std::max(gemm_bytes_, static_cast<int64_t>(gemm_blocks_workspace_bytes(product, threads)));
    }
  }

  int64_t workspace_bytes() const {
    int64_t floats = 0;
    for (int64_t part : parts()) floats += align_up(part * 4) / 4;
    return floats * 4 + gemm_bytes_;
  }

  LstmTape lay_out(void* workspace) const {
    float* at = static_cast<float*>(workspace);
    float* place[10];
    size_t i = 0;
    for (int64_t part : parts()) {
      place[i++] = at;
      at += align_up(part * 4) / 4;
    }
    return {place[0], place[1], place[2], place[3], place[4], place[5],
            place[6], place[7], place[8], place[9], at};
  }

  void forward(const ir::RunArgs& args, int64_t d, const LstmTape& t) const;
  void back(const ir::RunArgs& args, int64_t d, const LstmTape& t) const;
  const RecurrentPlan& plan() const { return p_; }

 private:
  std::array<int64_t, 10> parts() const {
    const int64_t all = p_.seq * cells_;
    return {4 * all, 4 * all, all, all, all, cells_, cells_, cells_, rows_, p_.seq * p_.batch * p_.input};
  }
  int64_t time(int64_t d, int64_t step) const { return p_.is_reversed(d) ? p_.seq - 1 - step : step; }

  // The products a [m, k] times b [k, n]; addresses that are set in a run are left out.
  cpu::BlockProduct inputs(const float* x, const float* w) const {
    return {.m = p_.seq * p_.batch,
            .k = p_.input,
            .n = rows_,
            .a = {x, p_.input},
            .b = {w, p_.input, true},
            .ldc = rows_};
  }
  cpu::BlockProduct recurrence(const float* h, const float* r) const {
    return {.m = p_.batch,
            .k = p_.hidden,
            .n = rows_,
            .a = {h, p_.hidden},
            .b = {r, p_.hidden, true},
            .ldc = rows_};
  }
  cpu::BlockProduct state_back(const float* dpre, const float* r) const {
    return {
        .m = p_.batch, .k = rows_, .n = p_.hidden, .a = {dpre, rows_}, .b = {r, p_.hidden}, .ldc = p_.hidden};
  }
  cpu::BlockProduct inputs_back(const float* dpre, const float* w) const {
    return {.m = p_.seq * p_.batch,
            .k = rows_,
            .n = p_.input,
            .a = {dpre, rows_},
            .b = {w, p_.input},
            .ldc = p_.input};
  }
  /// dpre^T times the operand of the weights: x or the previous states.
  cpu::BlockProduct weights(const float* dpre, const float* met, int64_t width) const {
    return {.m = rows_,
            .k = p_.seq * p_.batch,
            .n = width,
            .a = {dpre, rows_, true},
            .b = {met, width},
            .ldc = width};
  }

  void cells(const ir::RunArgs& args, const LstmTape& t, int64_t at, float* next_h, float* next_c) const;
  void cells_back(const ir::RunArgs& args, int64_t d, const LstmTape& t, int64_t at) const;

  RecurrentPlan p_;
  int64_t cells_, rows_;  // batch * hidden, 4 * hidden
  int64_t gemm_bytes_ = 0;
};

void copy_or_zero(const float* from, int64_t n, float* to) {
  if (from == nullptr)
    std::fill_n(to, n, 0.0f);
  else
    std::copy_n(from, n, to);
}

/// Computes gates, cell and state from the arguments of the gates of one step.
void Lstm::cells(const ir::RunArgs& args, const LstmTape& t, int64_t at, float* next_h, float* next_c) const {
  const int64_t n = p_.hidden;
  const size_t count = static_cast<size_t>(n);
  const cpu::UnaryTile sigmoid = cpu::unary_tile(cpu::UnaryOp::sigmoid_),
                       tanh = cpu::unary_tile(cpu::UnaryOp::tanh_);
  cpu::pool_of(args.stream).for_range(p_.batch, grain_for(80.0 * double(n)), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      float* act = t.act + (at * p_.batch + b) * rows_;
      sigmoid(act, act, 3 * count, {});
      tanh(act + 3 * n, act + 3 * n, count, {});
      const float *i = act, *o = act + n, *f = act + 2 * n, *g = act + 3 * n;
      const float* c = t.c + at * cells_ + b * n;
      float *tanh_c = t.tanh_c + at * cells_ + b * n, *to = next_c + b * n;
      for (int64_t j = 0; j < n; ++j) to[j] = f[j] * c[j] + i[j] * g[j];
      tanh(to, tanh_c, count, {});
      for (int64_t j = 0; j < n; ++j) next_h[b * n + j] = o[j] * tanh_c[j];
    }
  });
}

/// The last state and cell are left in dh and dc.
void Lstm::forward(const ir::RunArgs& args, int64_t d, const LstmTape& t) const {
  base::ThreadPool& pool = cpu::pool_of(args.stream);
  const float *w = in_ptr<float>(args, kW) + d * rows_ * p_.input,
              *r = in_ptr<float>(args, kR) + d * rows_ * p_.hidden;
  std::fill_n(t.bias, rows_, 0.0f);
  if (args.in[kB] != nullptr) {
    const float* b = in_ptr<float>(args, kB) + d * 2 * rows_;
    for (int64_t j = 0; j < rows_; ++j) t.bias[j] = b[j] + b[rows_ + j];
  }
  cpu::BlockProduct all = inputs(in_ptr<float>(args, kX), w);
  all.c = t.pre;
  all.epilogue.bias = t.bias;
  cpu::gemm_blocks(all, t.gemm, pool);
  copy_or_zero(args.in[kH] == nullptr ? nullptr : in_ptr<float>(args, kH) + d * cells_, cells_,
               t.h + time(d, 0) * cells_);
  copy_or_zero(args.in[kC] == nullptr ? nullptr : in_ptr<float>(args, kC) + d * cells_, cells_,
               t.c + time(d, 0) * cells_);
  for (int64_t s = 0; s < p_.seq; ++s) {
    const int64_t at = time(d, s);
    cpu::BlockProduct step = recurrence(t.h + at * cells_, r);
    step.c = t.act + at * p_.batch * rows_;
    step.epilogue.residual = t.pre + at * p_.batch * rows_;
    cpu::gemm_blocks(step, t.gemm, pool);
    const bool is_last = s + 1 == p_.seq;
    cells(args, t, at, is_last ? t.dh : t.h + time(d, s + 1) * cells_,
          is_last ? t.dc : t.c + time(d, s + 1) * cells_);
  }
}

/// From dh (adding dy) and dc after a step: the gradients of the gates' arguments, and dc before the step.
void Lstm::cells_back(const ir::RunArgs& args, int64_t d, const LstmTape& t, int64_t at) const {
  const int64_t n = p_.hidden;
  const float* dy = args.in[kDy] == nullptr ? nullptr : in_ptr<float>(args, kDy);
  cpu::pool_of(args.stream).for_range(p_.batch, grain_for(30.0 * double(n)), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const float *act = t.act + (at * p_.batch + b) * rows_, *c = t.c + at * cells_ + b * n;
      const float* tanh_c = t.tanh_c + at * cells_ + b * n;
      float *dpre = t.pre + (at * p_.batch + b) * rows_, *dh = t.dh + b * n, *dc = t.dc + b * n;
      for (int64_t j = 0; dy != nullptr && j < n; ++j) dh[j] += dy[p_.y_at(at, d, b) + j];
      for (int64_t j = 0; j < n; ++j) {
        const float i = act[j], o = act[n + j], f = act[2 * n + j], g = act[3 * n + j], u = tanh_c[j];
        const float total = dc[j] + dh[j] * o * (1 - u * u);
        dpre[j] = total * g * i * (1 - i);
        dpre[n + j] = dh[j] * u * o * (1 - o);
        dpre[2 * n + j] = total * c[j] * f * (1 - f);
        dpre[3 * n + j] = total * i * (1 - g * g);
        dc[j] = total * f;
      }
    }
  });
}

/// The gradients of direction d; called after forward.
void Lstm::back(const ir::RunArgs& args, int64_t d, const LstmTape& given) const {
  base::ThreadPool& pool = cpu::pool_of(args.stream);
  LstmTape t = given;
  const float *w = in_ptr<float>(args, kW) + d * rows_ * p_.input,
              *r = in_ptr<float>(args, kR) + d * rows_ * p_.hidden;
  copy_or_zero(args.in[kDh] == nullptr ? nullptr : in_ptr<float>(args, kDh) + d * cells_, cells_, t.dh);
  copy_or_zero(args.in[kDc] == nullptr ? nullptr : in_ptr<float>(args, kDc) + d * cells_, cells_, t.dc);
  for (int64_t s = p_.seq; s-- > 0;) {
    const int64_t at = time(d, s);
    cells_back(args, d, t, at);
    cpu::BlockProduct step = state_back(t.pre + at * p_.batch * rows_, r);
    step.c = t.dh_next;
    cpu::gemm_blocks(step, t.gemm, pool);
    std::swap(t.dh, t.dh_next);
  }
  std::copy_n(t.dh, cells_, out_ptr<float>(args, kOutH) + d * cells_);
  std::copy_n(t.dc, cells_, out_ptr<float>(args, kOutC) + d * cells_);
  cpu::BlockProduct dw = weights(t.pre, in_ptr<float>(args, kX), p_.input);
  dw.c = out_ptr<float>(args, kOutW) + d * rows_ * p_.input;
  dw.row_sums = out_ptr<float>(args, kOutB) + d * 2 * rows_;
  cpu::gemm_blocks(dw, t.gemm, pool);
  std::copy_n(dw.row_sums, rows_, dw.row_sums + rows_);
  cpu::BlockProduct dr = weights(t.pre, t.h, p_.hidden);
  dr.c = out_ptr<float>(args, kOutR) + d * rows_ * p_.hidden;
  cpu::gemm_blocks(dr, t.gemm, pool);
  cpu::BlockProduct dx = inputs_back(t.pre, w);
  const bool is_last = d + 1 == p_.directions;
  dx.c = is_last ? out_ptr<float>(args, kOutX) : t.dx;
  if (is_last && d > 0) dx.epilogue.residual = t.dx;
  cpu::gemm_blocks(dx, t.gemm, pool);
}

/// Copies the operands; those that a node leaves out at its end become null.
ir::RunArgs padded(const ir::RunArgs& given, size_t operands, std::array<const void*, kRecurrentIns>& in) {
  in.fill(nullptr);
  std::copy_n(given.in, std::min<size_t>(operands, kRecurrentIns), in.begin());
  return {in.data(), given.out, given.workspace, given.stream, given.status};
}

ir::BoundKernel prepare_forward(const ir::KernelInit& init) {
  const auto lstm = std::make_shared<const Lstm>(plan_recurrent(init.node, 4), init.threads);
  const size_t operands = init.node.in.size(), results = init.node.out.size();
  auto run = [lstm, operands, results](const ir::RunArgs& given) {
    std::array<const void*, kRecurrentIns> in;
    const ir::RunArgs args = padded(given, operands, in);
    const LstmTape t = lstm->lay_out(args.workspace);
    const RecurrentPlan& p = lstm->plan();
    const int64_t n = p.hidden, cells = p.batch * n;
    const auto out = [&](size_t i) { return i < results ? out_ptr<float>(args, i) : nullptr; };
    for (int64_t d = 0; d < p.directions; ++d) {
      lstm->forward(args, d, t);
      for (int64_t s = 0; out(0) != nullptr && s < p.seq; ++s) {
        // The state after step s is stored as the state before the next step.
        const int64_t at = p.is_reversed(d) ? p.seq - 1 - s : s, next = p.is_reversed(d) ? at - 1 : at + 1;
        const float* h = s + 1 == p.seq ? t.dh : t.h + next * cells;
        for (int64_t b = 0; b < p.batch; ++b) std::copy_n(h + b * n, n, out(0) + p.y_at(at, d, b));
      }
      if (out(1) != nullptr) std::copy_n(t.dh, cells, out(1) + d * cells);
      if (out(2) != nullptr) std::copy_n(t.dc, cells, out(2) + d * cells);
    }
  };
  return {run, lstm->workspace_bytes()};
}

ir::BoundKernel prepare_back(const ir::KernelInit& init) {
  const auto lstm = std::make_shared<const Lstm>(plan_recurrent(init.node, 4), init.threads);
  const size_t operands = init.node.in.size();
  auto run = [lstm, operands](const ir::RunArgs& given) {
    std::array<const void*, kRecurrentIns> in;
    const ir::RunArgs args = padded(given, operands, in);
    const LstmTape t = lstm->lay_out(args.workspace);
    const RecurrentPlan& p = lstm->plan();
    for (int64_t d = 0; d < p.directions; ++d) {
      lstm->forward(args, d, t);
      lstm->back(args, d, t);
    }
    std::fill_n(out_ptr<float>(args, kOutPeephole), p.directions * 3 * p.hidden, 0.0f);
  };
  return {run, lstm->workspace_bytes()};
}

}  // namespace

ir::Kernel lstm_live_kernel() {
  return {.name = "blocks", .refuse = refuse_live_lstm, .prepare = prepare_forward};
}
ir::Kernel lstm_grad_kernel() {
  return {.name = "blocks", .refuse = refuse_live_lstm, .prepare = prepare_back};
}

}  // namespace trireme::ops
