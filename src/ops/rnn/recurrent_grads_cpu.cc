// Kernels of rnn_grad, gru_grad and lstm_grad on CPU: they repeat the forward pass, go back through time,
// then sum the gradients of weights.
#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/kernel_forms.h"
#include "ops/rnn/lstm_fast.h"
#include "ops/rnn/recurrent_kernels.h"
#include "ops/rnn/recurrent_plan.h"

namespace trireme::ops {
namespace {

/// The values that one (direction, batch row) saves between the passes, as doubles in the workspace.
struct Tape {
  Tape(const RecurrentPlan& p, double* at) {
    const int64_t n = p.hidden, rows = p.gates * n;
    pre = at;
    h = pre + p.seq * rows;
    c = h + (p.seq + 1) * n;
    inner = c + (p.seq + 1) * n;
    dpre = inner + p.seq * n;
    dinner = dpre + p.seq * rows;
    dh = dinner + p.seq * n;
    dc = dh + n;
    rest = dc + n;
  }
  static int64_t size(const RecurrentPlan& p) {
    return p.seq * (2 * p.gates + 2) * p.hidden + 2 * (p.seq + 1) * p.hidden + 3 * p.hidden;
  }
  double* pre;             // [seq, gates * hidden]: arguments of the gates
  double* h;               // [seq + 1, hidden]: states before each step and after the last
  double* c;               // the same for the cell
  double* inner;           // [seq, hidden]: recurrence of gru's candidate before the reset gate scales it
  double* dpre;            // gradients of pre, and
  double* dinner;          // of the product with the candidate's recurrence weights
  double *dh, *dc, *rest;  // [hidden]: gradients of the state after the current step; scratch
};

template <class T>
struct Layer {
  const RecurrentPlan& p;
  const ir::RunArgs& args;
  const int64_t d, b, length;
  const T *w, *r, *bias, *peephole;
  const Gate* gate;
  Tape tape;

  Layer(const RecurrentPlan& plan, const ir::RunArgs& a, int64_t task, double* scratch)
      : p(plan),
        args(a),
        d(task / plan.batch),
        b(task % plan.batch),
        length(length_of(plan, a, b)),
        w(in(kW) + d * rows() * p.input),
        r(in(kR) + d * rows() * p.hidden),
        bias(in(kB) == nullptr ? nullptr : in(kB) + d * 2 * rows()),
        peephole(in(kPeephole) == nullptr ? nullptr : in(kPeephole) + d * 3 * p.hidden),
        gate(p.activations.data() + d * p.functions()),
        tape(p, scratch + task * Tape::size(p)) {}

  const T* in(size_t i) const { return opt_ptr<T>(args, i, kRecurrentIns); }
  int64_t rows() const { return p.gates * p.hidden; }
  int64_t time(int64_t step) const { return p.is_reversed(d) ? length - 1 - step : step; }
  const T* x(int64_t step) const { return in(kX) + p.x_at(time(step), b); }
  double clamped(double v) const { return p.clip > 0 ? std::clamp(v, -p.clip, p.clip) : v; }
  double act(size_t k, double v) const { return apply(gate[k], clamped(v)); }
  double slope(size_t k, double v) const {
    return p.clip > 0 && std::abs(v) >= p.clip ? 0.0 : derivative(gate[k], v);
  }
  double peep(int64_t which, int64_t j) const {
    return peephole == nullptr ? 0.0 : double(peephole[which * p.hidden + j]);
  }

  static int64_t length_of(const RecurrentPlan& p, const ir::RunArgs& a, int64_t b) {
    const int32_t* lengths = opt_ptr<int32_t>(a, kLengths, kRecurrentIns);
    return lengths == nullptr ? p.seq : std::clamp<int64_t>(lengths[b], 0, p.seq);
  }
};

template <class T, class V>
double dot(const T* weights, const V* v, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(weights[i]) * double(v[i]);
  return sum;
}

/// sums += scale * row.
template <class T, class A>
void add_row(double scale, const T* row, int64_t n, A* sums) {
  for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<A>(scale * double(row[i]));
}

/// One step forward: writes pre, inner and the next states of the tape.
template <class T>
void forward_step(const Layer<T>& l, int64_t s) {
  const RecurrentPlan& p = l.p;
  const int64_t n = p.hidden, rows = l.rows();
  double *pre = l.tape.pre + s * rows, *inner = l.tape.inner + s * n;
  const double *h = l.tape.h + s * n, *c = l.tape.c + s * n;
  double *next = l.tape.h + (s + 1) * n, *cell = l.tape.c + (s + 1) * n;
  const auto bias = [&](int64_t row) { return l.bias == nullptr ? 0.0 : double(l.bias[row]); };
  const int64_t plain = p.gates == 3 ? 2 * n : rows;
  for (int64_t j = 0; j < rows; ++j) pre[j] = dot(l.w + j * p.input, l.x(s), p.input) + bias(j);
  for (int64_t j = 0; j < plain; ++j) pre[j] += dot(l.r + j * n, h, n) + bias(rows + j);
  if (p.gates == 1) {
    for (int64_t j = 0; j < n; ++j) next[j] = l.act(0, pre[j]);
    return;
  }
  if (p.gates == 3) {
    for (int64_t j = 0; j < n; ++j)
      l.tape.rest[j] = p.linear_before_reset ? h[j] : l.act(0, pre[n + j]) * h[j];
    for (int64_t j = 0; j < n; ++j) {
      inner[j] = dot(l.r + (2 * n + j) * n, l.tape.rest, n) + bias(rows + 2 * n + j);
      pre[2 * n + j] += p.linear_before_reset ? l.act(0, pre[n + j]) * inner[j] : inner[j];
      const double z = l.act(0, pre[j]);
      next[j] = (1 - z) * l.act(1, pre[2 * n + j]) + z * h[j];
    }
    return;
  }
  for (int64_t j = 0; j < n; ++j) {
    pre[j] += l.peep(0, j) * c[j];
    pre[2 * n + j] += l.peep(2, j) * c[j];
    const double i = l.act(0, pre[j]), f = p.input_forget ? 1 - i : l.act(0, pre[2 * n + j]);
    cell[j] = f * c[j] + i * l.act(1, pre[3 * n + j]);
    pre[n + j] += l.peep(1, j) * cell[j];
    next[j] = l.act(0, pre[n + j]) * apply(l.gate[2], cell[j]);
  }
}

/// The backward step of gru's candidate: from its gradient in dpre to the reset gate and the previous state.
template <class T>
void gru_reset(const Layer<T>& l, int64_t s, double* before) {
  const RecurrentPlan& p = l.p;
  const int64_t n = p.hidden;
  const double *pre = l.tape.pre + s * 3 * n, *h = l.tape.h + s * n, *inner = l.tape.inner + s * n;
  double *dpre = l.tape.dpre + s * 3 * n, *dinner = l.tape.dinner + s * n;
  double* q = l.tape.dc;  // gradient of the operand of the candidate's recurrence weights
  std::fill_n(q, n, 0.0);
  for (int64_t j = 0; j < n; ++j) {
    const double scale = p.linear_before_reset ? l.act(0, pre[n + j]) : 1.0;
    dinner[j] = dpre[2 * n + j] * scale;
    add_row(dinner[j], l.r + (2 * n + j) * n, n, q);
  }
  for (int64_t j = 0; j < n; ++j) {
    const double reset = l.act(0, pre[n + j]);
    const double dreset = p.linear_before_reset ? dpre[2 * n + j] * inner[j] : q[j] * h[j];
    dpre[n + j] = dreset * l.slope(0, pre[n + j]);
    before[j] += p.linear_before_reset ? q[j] : q[j] * reset;
  }
}

template <class T>
void gru_back(const Layer<T>& l, int64_t s, double* before) {
  const int64_t n = l.p.hidden;
  const double *pre = l.tape.pre + s * 3 * n, *h = l.tape.h + s * n, *dh = l.tape.dh;
  double* dpre = l.tape.dpre + s * 3 * n;
  for (int64_t j = 0; j < n; ++j) {
    const double z = l.act(0, pre[j]), candidate = l.act(1, pre[2 * n + j]);
    dpre[j] = dh[j] * (h[j] - candidate) * l.slope(0, pre[j]);
    dpre[2 * n + j] = dh[j] * (1 - z) * l.slope(1, pre[2 * n + j]);
    before[j] = dh[j] * z;
  }
  gru_reset(l, s, before);
  for (int64_t j = 0; j < 2 * n; ++j) add_row(dpre[j], l.r + j * n, n, before);
}

template <class T>
void lstm_back(const Layer<T>& l, int64_t s, double* before) {
  const RecurrentPlan& p = l.p;
  const int64_t n = p.hidden;
  const double *pre = l.tape.pre + s * 4 * n, *c = l.tape.c + s * n, *cell = l.tape.c + (s + 1) * n;
  double *dpre = l.tape.dpre + s * 4 * n, *dc = l.tape.dc;
  for (int64_t j = 0; j < n; ++j) {
    const double i = l.act(0, pre[j]), o = l.act(0, pre[n + j]), g = l.act(1, pre[3 * n + j]);
    const double f = p.input_forget ? 1 - i : l.act(0, pre[2 * n + j]), dh = l.tape.dh[j];
    const double d_o = dh * apply(l.gate[2], cell[j]) * l.slope(0, pre[n + j]);
    // The output function is not clamped.
    const double total = dc[j] + dh * o * derivative(l.gate[2], cell[j]) + d_o * l.peep(1, j);
    const double d_i = total * (p.input_forget ? g - c[j] : g) * l.slope(0, pre[j]);
    const double d_f = p.input_forget ? 0.0 : total * c[j] * l.slope(0, pre[2 * n + j]);
    dpre[j] = d_i;
    dpre[n + j] = d_o;
    dpre[2 * n + j] = d_f;
    dpre[3 * n + j] = total * i * l.slope(1, pre[3 * n + j]);
    dc[j] = total * f + d_i * l.peep(0, j) + d_f * l.peep(2, j);
    before[j] = 0;
  }
  for (int64_t j = 0; j < 4 * n; ++j) add_row(dpre[j], l.r + j * n, n, before);
}

template <class T>
void rnn_back(const Layer<T>& l, int64_t s, double* before) {
  const int64_t n = l.p.hidden;
  std::fill_n(before, n, 0.0);
  for (int64_t j = 0; j < n; ++j) {
    l.tape.dpre[s * n + j] = l.tape.dh[j] * l.slope(0, l.tape.pre[s * n + j]);
    add_row(l.tape.dpre[s * n + j], l.r + j * n, n, before);
  }
}

template <class T>
void add_to(const RecurrentPlan& p, const T* from, int64_t at, double* sums) {
  for (int64_t j = 0; from != nullptr && j < p.hidden; ++j) sums[j] += double(from[at + j]);
}

template <class T>
void load(const RecurrentPlan& p, const T* from, int64_t at, double* to) {
  std::fill_n(to, p.hidden, 0.0);
  add_to(p, from, at, to);
}

/// Both passes of one (direction, batch row), and the gradients of its initial states.
template <class T>
void through_time(const Layer<T>& l) {
  const RecurrentPlan& p = l.p;
  const int64_t n = p.hidden, state = p.state_at(l.d, l.b);
  load(p, l.in(kH), state, l.tape.h);
  load(p, l.in(kC), state, l.tape.c);
  for (int64_t s = 0; s < l.length; ++s) forward_step(l, s);
  load(p, l.in(kDh), state, l.tape.dh);
  load(p, l.in(kDc), state, l.tape.dc);
  double* before = l.tape.rest;
  for (int64_t s = l.length; s-- > 0;) {
    add_to(p, l.in(kDy), p.y_at(l.time(s), l.d, l.b), l.tape.dh);
    if (p.gates == 1) rnn_back(l, s, before);
    if (p.gates == 3) gru_back(l, s, before);
    if (p.gates == 4) lstm_back(l, s, before);
    std::copy_n(before, n, l.tape.dh);
  }
  for (int64_t j = 0; j < n; ++j) {
    if (l.args.out[kOutH] != nullptr) out_ptr<T>(l.args, kOutH)[state + j] = static_cast<T>(l.tape.dh[j]);
    if (l.args.out[kOutC] != nullptr)
      out_ptr<T>(l.args, kOutC)[state + j] = static_cast<T>(p.gates == 4 ? l.tape.dc[j] : 0.0);
  }
}

/// Gradients of w, r and both biases of one gate row of one direction; rows are added by batch, then time.
template <class T>
void weight_row(const RecurrentPlan& p, const ir::RunArgs& args, int64_t task, double* scratch) {
  const int64_t n = p.hidden, rows = p.gates * n, d = task / rows, row = task % rows;
  T *dw = out_ptr<T>(args, kOutW) + task * p.input, *dr = out_ptr<T>(args, kOutR) + task * n;
  std::fill_n(dw, p.input, T(0));
  std::fill_n(dr, n, T(0));
  const bool is_candidate = p.gates == 3 && row >= 2 * n;
  double input_bias = 0, recurrent_bias = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Layer<T> l(p, args, d * p.batch + b, scratch);
    for (int64_t s = 0; s < l.length; ++s) {
      const double g = l.tape.dpre[s * rows + row];
      const double recurrent = is_candidate ? l.tape.dinner[s * n + row - 2 * n] : g;
      input_bias += g;
      recurrent_bias += recurrent;
      add_row(g, l.x(s), p.input, dw);
      const double *h = l.tape.h + s * n, *pre = l.tape.pre + s * rows;
      if (is_candidate && !p.linear_before_reset) {
        for (int64_t j = 0; j < n; ++j) dr[j] += static_cast<T>(recurrent * l.act(0, pre[n + j]) * h[j]);
      } else {
        add_row(recurrent, h, n, dr);
      }
    }
  }
  out_ptr<T>(args, kOutB)[d * 2 * rows + row] = static_cast<T>(input_bias);
  out_ptr<T>(args, kOutB)[d * 2 * rows + rows + row] = static_cast<T>(recurrent_bias);
}

/// Peephole gradients of one direction and hidden unit, zero if there are none: i and f read the cell before
/// the step, o the one after it.
template <class T>
void peephole_unit(const RecurrentPlan& p, const ir::RunArgs& args, int64_t task, double* scratch) {
  const int64_t n = p.hidden, d = task / n, j = task % n;
  double sums[3] = {0, 0, 0};
  const bool is_asked = p.gates == 4 && args.in[kPeephole] != nullptr;
  for (int64_t b = 0; b < p.batch && is_asked; ++b) {
    const Layer<T> l(p, args, d * p.batch + b, scratch);
    for (int64_t s = 0; s < l.length; ++s) {
      const double *g = l.tape.dpre + s * 4 * n, *c = l.tape.c + s * n;
      sums[0] += g[j] * c[j];
      sums[1] += g[n + j] * c[n + j];
      sums[2] += g[2 * n + j] * c[j];
    }
  }
  for (int64_t k = 0; k < 3; ++k)
    out_ptr<T>(args, kOutPeephole)[(d * 3 + k) * n + j] = static_cast<T>(sums[k]);
}

/// dx of one batch row over all directions; zero after the end of its sequence.
template <class T>
void input_row(const RecurrentPlan& p, const ir::RunArgs& args, int64_t b, double* scratch) {
  const int64_t rows = p.gates * p.hidden;
  for (int64_t t = 0; t < p.seq; ++t) std::fill_n(out_ptr<T>(args, kOutX) + p.x_at(t, b), p.input, T(0));
  for (int64_t d = 0; d < p.directions; ++d) {
    const Layer<T> l(p, args, d * p.batch + b, scratch);
    for (int64_t s = 0; s < l.length; ++s) {
      T* dx = out_ptr<T>(args, kOutX) + p.x_at(l.time(s), b);
      for (int64_t row = 0; row < rows; ++row)
        add_row(l.tape.dpre[s * rows + row], l.w + row * p.input, p.input, dx);
    }
  }
}

PrepareFn prepare_recurrent_grad(size_t gates) {
  return [gates](const ir::KernelInit& init) {
    const auto plan = std::make_shared<const RecurrentPlan>(plan_recurrent(init.node, gates));
    return visit_float(init.node.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      const size_t operands = init.node.in.size();
      const auto run = [plan, operands](const ir::RunArgs& given) {
        std::array<const void*, kRecurrentIns> in{};  // trailing operands may be missing
        std::copy_n(given.in, std::min<size_t>(operands, kRecurrentIns), in.begin());
        const ir::RunArgs args{in.data(), given.out, given.workspace, given.stream, given.status};
        const RecurrentPlan& p = *plan;
        double* scratch = static_cast<double*>(args.workspace);
        base::ThreadPool& pool = cpu::pool_of(args.stream);
        pool.run(p.directions * p.batch,
                 [&](int64_t task) { through_time(Layer<T>(p, args, task, scratch)); });
        pool.run(p.directions * p.gates * p.hidden,
                 [&](int64_t task) { weight_row<T>(p, args, task, scratch); });
        pool.run(p.batch, [&](int64_t b) { input_row<T>(p, args, b, scratch); });
        if (args.out[kOutPeephole] != nullptr)
          pool.run(p.directions * p.hidden, [&](int64_t task) { peephole_unit<T>(p, args, task, scratch); });
      };
      return ir::BoundKernel{run, plan->directions * plan->batch * Tape::size(*plan) * 8};
    });
  };
}

}  // namespace

std::vector<ir::Kernel> recurrent_grad_cpu_kernels(size_t gates) {
  if (gates == 4) return faster({lstm_grad_kernel()}, float_reference(prepare_recurrent_grad(gates)));
  return float_reference(prepare_recurrent_grad(gates));
}

}  // namespace trireme::ops
