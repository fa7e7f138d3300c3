// Kernels of recurrent layers backwards: the gradients of one step's gates, and of peepholes.
#pragma once

#include <cstdint>

#include "backend/cuda/rnn/recurrent_cells.h"

namespace trireme::cuda {

/// A thread a unit of a sequence.
template <class T, RecurrentPhase kPhase>
struct RecurrentBackCells {
  static constexpr bool kIndependent = true;
  RecurrentBack s;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const RecurrentShape& shape = s.shape;
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread();
         i < shape.directions * shape.batch * shape.hidden; i += stride) {
      const RecurrentPlace p(shape, s.lengths, s.step, i);
      const float product = to_float(static_cast<const T*>(s.product)[i]);
      if constexpr (kPhase == RecurrentPhase::gru_gates) {
        p.is_active ? reset_gate(p, product) : none(p, 1, 1);
        continue;
      }
      float dh = s.direct[i] + product;
      if (!p.is_active) {
        s.direct[i] = dh;
        none(p, 0, shape.gates);
        continue;
      }
      if (s.dy != nullptr) dh += to_float(static_cast<const T*>(s.dy)[p.y(shape)]);
      if constexpr (kPhase == RecurrentPhase::rnn) {
        put(p, 0, dh * gate_slope_of(shape, p.d, 0, pre(p, 0)));
        s.direct[i] = 0;
      } else if constexpr (kPhase == RecurrentPhase::lstm) {
        lstm(p, dh);
      } else {
        gru(p, dh);
      }
    }
  }

 private:
  TRIREME_DEVICE float pre(const RecurrentPlace& p, int g) const {
    return to_float(static_cast<const T*>(
        s.pre)[p.tape(s.shape, s.shape.gates * s.shape.hidden) + g * s.shape.hidden + p.j]);
  }
  TRIREME_DEVICE int64_t own(const RecurrentPlace& p) const { return p.tape(s.shape, s.shape.hidden) + p.j; }
  /// The gradient of gate g's argument and of the product in it.
  TRIREME_DEVICE void put(const RecurrentPlace& p, int g, float argument, float product) const {
    const int64_t n = s.shape.hidden, rows = s.shape.gates * n;
    const int64_t at = p.tape(s.shape, rows) + g * n + p.j;
    static_cast<T*>(s.dpre)[at] = from_float<T>(argument);
    if (s.drec != nullptr) static_cast<T*>(s.drec)[at] = from_float<T>(product);
    static_cast<T*>(s.step_grad)[(p.d * s.shape.batch + p.b) * rows + g * n + p.j] = from_float<T>(product);
  }
  TRIREME_DEVICE void put(const RecurrentPlace& p, int g, float argument) const {
    put(p, g, argument, argument);
  }
  TRIREME_DEVICE void none(const RecurrentPlace& p, int first, int count) const {
    for (int g = first; g < first + count; ++g) put(p, g, 0);
  }
  TRIREME_DEVICE float peep(const RecurrentPlace& p, int which) const {
    if (s.peephole == nullptr) return 0;
    return to_float(static_cast<const T*>(s.peephole)[(p.d * 3 + which) * s.shape.hidden + p.j]);
  }

  TRIREME_DEVICE void lstm(const RecurrentPlace& p, float dh) const {
    const RecurrentShape& shape = s.shape;
    const int64_t cell = p.cell(shape);
    const float a_i = pre(p, 0), a_o = pre(p, 1), a_f = pre(p, 2), a_c = pre(p, 3);
    const float i = gate_of(shape, p.d, 0, a_i), o = gate_of(shape, p.d, 0, a_o),
                g = gate_of(shape, p.d, 1, a_c);
    const float f = shape.input_forget ? 1 - i : gate_of(shape, p.d, 0, a_f);
    const float old = s.tape.c[own(p)], c = s.tape.cell[own(p)];
    const RecurrentFunction& out = shape.functions[p.d][2];  // not clamped
    const float d_o = dh * gate_value(out, c) * gate_slope_of(shape, p.d, 0, a_o);
    const float total = s.dc[cell] + dh * o * gate_slope(out, c) + d_o * peep(p, 1);
    const float d_i = total * (shape.input_forget ? g - old : g) * gate_slope_of(shape, p.d, 0, a_i);
    const float d_f = shape.input_forget ? 0.0f : total * old * gate_slope_of(shape, p.d, 0, a_f);
    put(p, 0, d_i);
    put(p, 1, d_o);
    put(p, 2, d_f);
    put(p, 3, total * i * gate_slope_of(shape, p.d, 1, a_c));
    s.dc[cell] = total * f + d_i * peep(p, 0) + d_f * peep(p, 2);
    s.direct[cell] = 0;
  }

  /// Update gate and candidate; the reset gate too where it scales the product.
  TRIREME_DEVICE void gru(const RecurrentPlace& p, float dh) const {
    const RecurrentShape& shape = s.shape;
    const float a_z = pre(p, 0), a_r = pre(p, 1), a_c = pre(p, 2);
    const float z = gate_of(shape, p.d, 0, a_z), candidate = gate_of(shape, p.d, 1, a_c);
    const float before = to_float(static_cast<const T*>(s.tape.h)[own(p)]);
    const float d_c = dh * (1 - z) * gate_slope_of(shape, p.d, 1, a_c);
    put(p, 0, dh * (before - candidate) * gate_slope_of(shape, p.d, 0, a_z));
    if constexpr (kPhase == RecurrentPhase::gru) {
      put(p, 1, d_c * s.tape.inner[own(p)] * gate_slope_of(shape, p.d, 0, a_r));
      put(p, 2, d_c, d_c * gate_of(shape, p.d, 0, a_r));
    } else {
      put(p, 2, d_c);
    }
    s.direct[p.cell(shape)] = dh * z;
  }
  /// q: the gradient of r h, a product of the candidate's.
  TRIREME_DEVICE void reset_gate(const RecurrentPlace& p, float q) const {
    const float a_r = pre(p, 1), before = to_float(static_cast<const T*>(s.tape.h)[own(p)]);
    put(p, 1, q * before * gate_slope_of(s.shape, p.d, 0, a_r));
    s.direct[p.cell(s.shape)] += q * gate_of(s.shape, p.d, 0, a_r);
  }
};

/// i and f look at the cell before the step, o after it: a thread a weight, places in their order.
template <class T>
struct RecurrentPeepholes {
  static constexpr bool kIndependent = true;
  RecurrentShape shape;
  const T* dpre;
  RecurrentTape tape;
  T* dpeephole;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t n = shape.hidden, stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < shape.directions * 3 * n;
         i += stride) {
      const int64_t d = i / (3 * n), which = i / n % 3, j = i % n;
      float sum = 0;
      for (int64_t at = 0; at < shape.seq * shape.batch && shape.gates == 4; ++at) {
        const int64_t row = at * shape.directions + d;
        const float g = to_float(dpre[(row * 4 + which) * n + j]);
        if (g != 0) sum += g * (which == 1 ? tape.cell : tape.c)[row * n + j];
      }
      dpeephole[i] = from_float<T>(sum);
    }
  }
};

}  // namespace trireme::cuda
