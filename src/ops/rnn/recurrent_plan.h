// What the attributes of rnn, gru and lstm ask for, with extents checked and defaults filled in.
#pragma once

#include "ir/kernel.h"
#include "ir/schema.h"
#include "tensor/gate.h"

namespace trireme::ops {

using tensor::GateKind;

/// Operands of rnn, gru and lstm; those of their backward ops go on with the gradients of the results.
enum RecurrentIn : size_t { kX, kW, kR, kB, kLengths, kH, kC, kPeephole, kDy, kDh, kDc, kRecurrentIns };
/// Results of the backward ops: gradients of the operands.
enum RecurrentGradOut : size_t { kOutX, kOutW, kOutR, kOutB, kOutH, kOutC, kOutPeephole };

/// One activation of a recurrent layer with its parameters.
struct Gate {
  GateKind kind = GateKind::tanh;
  double alpha = 0, beta = 0;
};

double apply(const Gate& gate, double x);
/// Its derivative at x.
double derivative(const Gate& gate, double x);

struct RecurrentPlan {
  int64_t seq = 0, batch = 0, input = 0, hidden = 0, directions = 1;
  int64_t gates = 1;
  bool batch_first = false, starts_reversed = false;
  double clip = 0;  ///< 0: none
  bool linear_before_reset = false, input_forget = false;
  std::vector<Gate> activations;  ///< per direction: rnn 1, gru 2, lstm 3

  int64_t functions() const { return gates == 1 ? 1 : gates - 1; }
  bool is_reversed(int64_t direction) const { return direction == 1 || starts_reversed; }
  /// Offset of x at (time, batch row), and of result 0 at (time, direction, batch row).
  int64_t x_at(int64_t t, int64_t b) const { return (batch_first ? b * seq + t : t * batch + b) * input; }
  int64_t y_at(int64_t t, int64_t d, int64_t b) const {
    return (batch_first ? (b * seq + t) * directions + d : (t * directions + d) * batch + b) * hidden;
  }
  /// Offset of a state (initial or last).
  int64_t state_at(int64_t d, int64_t b) const {
    return (batch_first ? b * directions + d : d * batch + b) * hidden;
  }
};

/// Reads node with static shapes; `gates` is 1 (rnn), 3 (gru) or 4 (lstm). Throws invalid_argument for
/// operands that do not fit and unsupported for unknown activations.
RecurrentPlan plan_recurrent(const ir::NodeView& node, size_t gates);

/// Reports the first length [batch] that is not within 0 and seq; kernels take it for the nearest that is.
void check_lengths(const RecurrentPlan& plan, const int32_t* lengths, ir::RunStatus* status);

}  // namespace trireme::ops
