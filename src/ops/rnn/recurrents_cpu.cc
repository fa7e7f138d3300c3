// Reference kernels of rnn, gru and lstm on CPU, with all options: every row of the batch processes its
// sequence on its own.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/kernel_forms.h"
#include "ops/rnn/lstm_fast.h"
#include "ops/rnn/recurrent_kernels.h"
#include "ops/rnn/recurrent_packed.h"
#include "ops/rnn/recurrent_plan.h"

namespace trireme::ops {
namespace {

/// Addresses for one direction of one launch, and scratch of one (direction, batch row).
template <class T>
struct Cell {
  const T *w, *r, *bias, *peephole;  // bias [2, gates * hidden] and peephole [3, hidden] may be null
  const Gate* gate;
  double *h, *c, *pre, *next;  // [hidden], [hidden], [gates * hidden], [hidden]
};

double clamped(const RecurrentPlan& p, double v) { return p.clip > 0 ? std::clamp(v, -p.clip, p.clip) : v; }

/// Row `row` of the weights times the vector.
template <class T, class V>
double dot(const T* weights, const V* v, int64_t row, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(weights[row * n + i]) * double(v[i]);
  return sum;
}

/// The sum of input and recurrence bias of a gate row.
template <class T>
double bias_of(const RecurrentPlan& p, const Cell<T>& c, int64_t row, bool input, bool recurrent) {
  if (c.bias == nullptr) return 0;
  double b = input ? double(c.bias[row]) : 0.0;
  if (recurrent) b += double(c.bias[p.gates * p.hidden + row]);
  return b;
}

template <class T>
void rnn_step(const RecurrentPlan& p, const Cell<T>& c, const T* x) {
  for (int64_t j = 0; j < p.hidden; ++j) {
    const double v = dot(c.w, x, j, p.input) + dot(c.r, c.h, j, p.hidden) + bias_of(p, c, j, true, true);
    c.next[j] = apply(c.gate[0], clamped(p, v));
  }
  std::copy_n(c.next, p.hidden, c.h);
}

template <class T>
void gru_step(const RecurrentPlan& p, const Cell<T>& c, const T* x) {
  const int64_t n = p.hidden;
  for (int64_t j = 0; j < 2 * n; ++j) {
    const double v = dot(c.w, x, j, p.input) + dot(c.r, c.h, j, n) + bias_of(p, c, j, true, true);
    c.pre[j] = apply(c.gate[0], clamped(p, v));  // first z, then r
  }
  // The last third of `pre` holds the operand of the candidate's recurrence.
  for (int64_t j = 0; j < n; ++j) c.pre[2 * n + j] = p.linear_before_reset ? c.h[j] : c.pre[n + j] * c.h[j];
  for (int64_t j = 0; j < n; ++j) {
    const int64_t row = 2 * n + j;
    double recurrent = dot(c.r, c.pre + 2 * n, row, n) + bias_of(p, c, row, false, true);
    if (p.linear_before_reset) recurrent *= c.pre[n + j];
    const double v = dot(c.w, x, row, p.input) + bias_of(p, c, row, true, false) + recurrent;
    const double candidate = apply(c.gate[1], clamped(p, v)), z = c.pre[j];
    c.next[j] = (1 - z) * candidate + z * c.h[j];
  }
  std::copy_n(c.next, n, c.h);
}

template <class T>
void lstm_step(const RecurrentPlan& p, const Cell<T>& c, const T* x) {
  const int64_t n = p.hidden;
  for (int64_t j = 0; j < 4 * n; ++j) {
    c.pre[j] = dot(c.w, x, j, p.input) + dot(c.r, c.h, j, n) + bias_of(p, c, j, true, true);
  }
  auto peep = [&](int64_t which, int64_t j) {
    return c.peephole == nullptr ? 0.0 : double(c.peephole[which * n + j]);
  };
  for (int64_t j = 0; j < n; ++j) {
    const double old = c.c[j];
    const double i = apply(c.gate[0], clamped(p, c.pre[j] + peep(0, j) * old));
    const double f =
        p.input_forget ? 1 - i : apply(c.gate[0], clamped(p, c.pre[2 * n + j] + peep(2, j) * old));
    const double candidate = apply(c.gate[1], clamped(p, c.pre[3 * n + j]));
    const double state = f * old + i * candidate;
    const double o = apply(c.gate[0], clamped(p, c.pre[n + j] + peep(1, j) * state));
    c.c[j] = state;
    c.next[j] = o * apply(c.gate[2], state);
  }
  std::copy_n(c.next, n, c.h);
}

struct Counts {
  size_t in, out;
};

template <class T>
void load_state(const RecurrentPlan& p, const T* initial, int64_t at, double* state) {
  for (int64_t j = 0; j < p.hidden; ++j) state[j] = initial == nullptr ? 0.0 : double(initial[at + j]);
}

template <class T>
void store_state(const RecurrentPlan& p, const double* state, T* to, int64_t at) {
  if (to == nullptr) return;
  for (int64_t j = 0; j < p.hidden; ++j) to[at + j] = T(state[j]);
}

/// Processes the valid part of one (direction, batch row); what follows it is set to zero.
template <class T>
void walk(const RecurrentPlan& p, const ir::RunArgs& args, Counts counts, int64_t task, double* scratch) {
  const int64_t d = task / p.batch, b = task % p.batch, n = p.hidden, rows = p.gates * n;
  auto in = [&](size_t i) { return opt_ptr<T>(args, i, counts.in); };
  auto out = [&](size_t i) { return i < counts.out ? out_ptr<T>(args, i) : nullptr; };
  const T *bias = in(3), *peephole = in(7);
  const Cell<T> cell{in(1) + d * rows * p.input,
                     in(2) + d * rows * n,
                     bias == nullptr ? nullptr : bias + d * 2 * rows,
                     peephole == nullptr ? nullptr : peephole + d * 3 * n,
                     p.activations.data() + d * p.functions(),
                     scratch,
                     scratch + n,
                     scratch + 2 * n,
                     scratch + 2 * n + rows};
  load_state(p, in(5), p.state_at(d, b), cell.h);
  load_state(p, p.gates == 4 ? in(6) : nullptr, p.state_at(d, b), cell.c);
  const int32_t* lengths = opt_ptr<int32_t>(args, 4, counts.in);
  const int64_t length = lengths == nullptr ? p.seq : std::clamp<int64_t>(lengths[b], 0, p.seq);
  T* y = out(0);
  for (int64_t step = 0; step < length; ++step) {
    const int64_t t = p.is_reversed(d) ? length - 1 - step : step;
    const T* x = in(0) + p.x_at(t, b);
    if (p.gates == 1) rnn_step(p, cell, x);
    if (p.gates == 3) gru_step(p, cell, x);
    if (p.gates == 4) lstm_step(p, cell, x);
    store_state(p, cell.h, y, p.y_at(t, d, b));
  }
  for (int64_t t = length; y != nullptr && t < p.seq; ++t) std::fill_n(y + p.y_at(t, d, b), n, T(0));
  store_state(p, cell.h, out(1), p.state_at(d, b));
  if (p.gates == 4) store_state(p, cell.c, out(2), p.state_at(d, b));
}

PrepareFn prepare_recurrent(size_t gates) {
  return [gates](const ir::KernelInit& init) {
    const auto plan = std::make_shared<const RecurrentPlan>(plan_recurrent(init.node, gates));
    const Counts counts{init.node.in.size(), init.node.out.size()};
    const int64_t scratch = (3 + plan->gates) * plan->hidden;
    return visit_float(init.node.in[0].dtype, [&](auto t) {
      auto run = [plan, counts, scratch](const ir::RunArgs& args) {
        check_lengths(*plan, opt_ptr<int32_t>(args, kLengths, counts.in), args.status);
        cpu::pool_of(args.stream).run(plan->directions * plan->batch, [&](int64_t task) {
          walk<decltype(t)>(*plan, args, counts, task, static_cast<double*>(args.workspace) + task * scratch);
        });
      };
      return ir::BoundKernel{run, plan->directions * plan->batch * scratch * 8};
    });
  };
}

}  // namespace

std::vector<ir::Kernel> rnn_cpu_kernels() {
  return faster({recurrent_packed_kernel(1)}, float_reference(prepare_recurrent(1)));
}
std::vector<ir::Kernel> gru_cpu_kernels() {
  return faster({recurrent_packed_kernel(3)}, float_reference(prepare_recurrent(3)));
}
std::vector<ir::Kernel> lstm_cpu_kernels() {
  return faster({lstm_packed_kernel(), recurrent_packed_kernel(4), lstm_live_kernel()},
                float_reference(prepare_recurrent(4)));
}

}  // namespace trireme::ops
