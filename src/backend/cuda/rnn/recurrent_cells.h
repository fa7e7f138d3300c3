// The arithmetic of one cell of a recurrent layer: where a step's values lie, and the step of each kind.
#pragma once

#include <cstdint>

#include "backend/cuda/rnn/recurrent_gates.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// One unit of one sequence and direction at one step.
struct RecurrentPlace {
  int64_t d, b, j;
  int64_t time;    // of the step; of a sequence that has ended, one of those behind its end
  bool is_active;  // the sequence is that long
  int64_t at;      // (time, sequence)

  TRIREME_DEVICE RecurrentPlace(const RecurrentShape& s, const int32_t* lengths, int64_t step, int64_t cell)
      : d(cell / s.hidden / s.batch), b(cell / s.hidden % s.batch), j(cell % s.hidden) {
    int64_t length = lengths == nullptr ? s.seq : lengths[b];
    length = length < 0 ? 0 : length > s.seq ? s.seq : length;
    is_active = step < length;
    const bool is_reversed = d == 1 || s.starts_reversed;
    time = is_active && is_reversed ? length - 1 - step : step;
    at = s.batch_first ? b * s.seq + time : time * s.batch + b;
  }
  /// Of [directions, batch, hidden].
  TRIREME_DEVICE int64_t cell(const RecurrentShape& s) const { return (d * s.batch + b) * s.hidden + j; }
  /// Of [places, directions, n].
  TRIREME_DEVICE int64_t tape(const RecurrentShape& s, int64_t n) const {
    return (at * s.directions + d) * n;
  }
  /// Of the result over time.
  TRIREME_DEVICE int64_t y(const RecurrentShape& s) const {
    const int64_t row =
        s.batch_first ? (b * s.seq + time) * s.directions + d : (time * s.directions + d) * s.batch + b;
    return row * s.hidden + j;
  }
};

TRIREME_DEVICE float gate_clamped(const RecurrentShape& s, float x) {
  return s.clip > 0 ? std::fmin(std::fmax(x, -s.clip), s.clip) : x;
}
TRIREME_DEVICE float gate_of(const RecurrentShape& s, int64_t d, int f, float x) {
  return gate_value(s.functions[d][f], gate_clamped(s, x));
}
TRIREME_DEVICE float gate_slope_of(const RecurrentShape& s, int64_t d, int f, float x) {
  return s.clip > 0 && std::fabs(x) >= s.clip ? 0.0f : gate_slope(s.functions[d][f], x);
}

/// Rows of the weights that a phase multiplies: kCount gates from kFirst on.
template <RecurrentPhase kPhase>
struct PhaseRows {
  static constexpr int kFirst = kPhase == RecurrentPhase::gru_candidate ? 2 : 0;
  static constexpr int kCount = kPhase == RecurrentPhase::lstm        ? 4
                                : kPhase == RecurrentPhase::gru       ? 3
                                : kPhase == RecurrentPhase::gru_gates ? 2
                                                                      : 1;
};

/// Finishes a phase of one unit from its products with the states.
template <class T, RecurrentPhase kPhase>
struct RecurrentFinish {
  static constexpr int kRows = PhaseRows<kPhase>::kCount;
  static constexpr int kFirst = PhaseRows<kPhase>::kFirst;
  RecurrentStep s;

  TRIREME_DEVICE void operator()(int64_t cell, const float (&product)[kRows]) const {
    const RecurrentShape& shape = s.shape;
    const RecurrentPlace p(shape, s.lengths, s.step, cell);
    const auto* h = static_cast<const T*>(s.h);
    const int64_t own = p.tape(shape, shape.hidden) + p.j;
    if (!p.is_active) {
      if (kPhase == RecurrentPhase::gru_gates) {
        static_cast<T*>(s.reset_h)[cell] = from_float<T>(0);
        if (s.tape.reset_h != nullptr) static_cast<T*>(s.tape.reset_h)[own] = from_float<T>(0);
        return;
      }
      static_cast<T*>(s.next)[cell] = h[cell];
      if (s.y != nullptr) static_cast<T*>(s.y)[p.y(shape)] = from_float<T>(0);
      if (s.tape.h != nullptr) static_cast<T*>(s.tape.h)[own] = from_float<T>(0);
      return;
    }
    const int64_t rows = shape.gates * shape.hidden;
    auto* pre = static_cast<T*>(s.pre) + p.tape(shape, rows) + p.j;
    const auto* bias = s.bias == nullptr ? nullptr : static_cast<const T*>(s.bias) + p.d * 2 * rows + p.j;
    float input[kRows], recurrent[kRows];
    for (int g = 0; g < kRows; ++g) {
      const int64_t row = (kFirst + g) * shape.hidden;
      input[g] = to_float(pre[row]);
      recurrent[g] = product[g];
      if (bias == nullptr) continue;
      input[g] += to_float(bias[row]);
      recurrent[g] += to_float(bias[rows + row]);
    }
    step(p, pre, input, recurrent);
  }

 private:
  TRIREME_DEVICE void keep(T* pre, int g, float argument) const {
    if (s.tape.h != nullptr) pre[g * s.shape.hidden] = from_float<T>(argument);
  }
  TRIREME_DEVICE void set(const RecurrentPlace& p, float value) const {
    const int64_t cell = p.cell(s.shape), own = p.tape(s.shape, s.shape.hidden) + p.j;
    if (s.tape.h != nullptr) static_cast<T*>(s.tape.h)[own] = static_cast<const T*>(s.h)[cell];
    const T rounded = from_float<T>(value);
    static_cast<T*>(s.next)[cell] = rounded;
    if (s.y != nullptr) static_cast<T*>(s.y)[p.y(s.shape)] = rounded;
  }
  TRIREME_DEVICE float peep(const RecurrentPlace& p, int which) const {
    if (s.peephole == nullptr) return 0;
    return to_float(static_cast<const T*>(s.peephole)[(p.d * 3 + which) * s.shape.hidden + p.j]);
  }

  TRIREME_DEVICE void step(const RecurrentPlace& p, T* pre, const float (&input)[kRows],
                           const float (&recurrent)[kRows]) const {
    const RecurrentShape& shape = s.shape;
    const int64_t cell = p.cell(shape), own = p.tape(shape, shape.hidden) + p.j;
    const float before = to_float(static_cast<const T*>(s.h)[cell]);
    if constexpr (kPhase == RecurrentPhase::rnn) {
      keep(pre, 0, input[0] + recurrent[0]);
      set(p, gate_of(shape, p.d, 0, input[0] + recurrent[0]));
    } else if constexpr (kPhase == RecurrentPhase::lstm) {
      lstm(p, pre, input, recurrent);
    } else if constexpr (kPhase == RecurrentPhase::gru) {
      const float z = input[0] + recurrent[0], r = input[1] + recurrent[1];
      const float a = input[2] + gate_of(shape, p.d, 0, r) * recurrent[2];
      if (s.tape.inner != nullptr) s.tape.inner[own] = recurrent[2];
      keep(pre, 0, z), keep(pre, 1, r), keep(pre, 2, a);
      const float update = gate_of(shape, p.d, 0, z);
      set(p, (1 - update) * gate_of(shape, p.d, 1, a) + update * before);
    } else if constexpr (kPhase == RecurrentPhase::gru_gates) {
      const float r = input[1] + recurrent[1];
      pre[0] = from_float<T>(input[0] + recurrent[0]);
      pre[shape.hidden] = from_float<T>(r);
      const T kept = from_float<T>(gate_of(shape, p.d, 0, r) * before);
      static_cast<T*>(s.reset_h)[cell] = kept;
      if (s.tape.reset_h != nullptr) static_cast<T*>(s.tape.reset_h)[own] = kept;
    } else {
      const float a = input[0] + recurrent[0], update = gate_of(shape, p.d, 0, to_float(pre[0]));
      keep(pre, 2, a);
      set(p, (1 - update) * gate_of(shape, p.d, 1, a) + update * before);
    }
  }

  /// Gates i, o, f and the candidate.
  TRIREME_DEVICE void lstm(const RecurrentPlace& p, T* pre, const float* input,
                           const float* recurrent) const {
    const RecurrentShape& shape = s.shape;
    const int64_t cell = p.cell(shape), own = p.tape(shape, shape.hidden) + p.j;
    const float old = s.c[cell];
    const float a_i = input[0] + recurrent[0] + peep(p, 0) * old;
    const float a_f = input[2] + recurrent[2] + peep(p, 2) * old, a_c = input[3] + recurrent[3];
    const float i = gate_of(shape, p.d, 0, a_i);
    const float f = shape.input_forget ? 1 - i : gate_of(shape, p.d, 0, a_f);
    const float c = f * old + i * gate_of(shape, p.d, 1, a_c);
    const float a_o = input[1] + recurrent[1] + peep(p, 1) * c;
    keep(pre, 0, a_i), keep(pre, 1, a_o), keep(pre, 2, a_f), keep(pre, 3, a_c);
    if (s.tape.c != nullptr) s.tape.c[own] = old;
    if (s.tape.cell != nullptr) s.tape.cell[own] = c;
    s.c[cell] = c;
    set(p, gate_of(shape, p.d, 0, a_o) * gate_value(shape.functions[p.d][2], c));
  }
};

}  // namespace trireme::cuda
