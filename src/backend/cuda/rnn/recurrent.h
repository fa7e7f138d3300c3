// Launchers of recurrent layers, one step of all sequences and directions at a time.
#pragma once

#include "backend/cuda/device/on.h"
#include "tensor/gate.h"

namespace trireme::cuda {

struct RecurrentFunction {
  tensor::GateKind kind = tensor::GateKind::tanh;
  float alpha = 0, beta = 0;
};

/// rows of the weights: gates x hidden, in ONNX's order of gates. Sequence b takes its steps [0, length(b)),
/// a reversed one backwards in time.
struct RecurrentShape {
  int64_t seq = 0, batch = 0, hidden = 0, directions = 1;
  int gates = 1;  ///< 1 rnn, 3 gru, 4 lstm
  bool batch_first = false, starts_reversed = false, linear_before_reset = false, input_forget = false;
  float clip = 0;  ///< 0: none
  RecurrentFunction functions[2][3];

  int64_t rows() const { return gates * hidden; }
  int64_t cells() const { return directions * batch * hidden; }
  int64_t places() const { return seq * batch; }
};

/// Parts of a step: gru with the reset gate before the product of the candidate takes two.
enum class RecurrentPhase : uint8_t { rnn, lstm, gru, gru_gates, gru_candidate };

/// What a layer keeps for its way back, for every place (time, sequence) and direction; null: nothing.
struct RecurrentTape {
  void *h = nullptr, *reset_h = nullptr;  ///< [places, directions, hidden]: before the step; r h
  float *c = nullptr, *cell = nullptr;    ///< the cell before and after the step
  float* inner = nullptr;                 ///< gru's product before the reset gate scales it
};

/// `on.dtype` for all but lengths, cells and what a tape says: f32, f16 or bf16.
struct RecurrentStep {
  RecurrentShape shape;
  RecurrentPhase phase = RecurrentPhase::rnn;
  int64_t step = 0;
  const void *r = nullptr, *bias = nullptr, *peephole = nullptr;  ///< bias and peephole or null
  const int32_t* lengths = nullptr;                               ///< or null: all are of `seq` steps
  /// [places, directions, rows]: products of the inputs. With a tape, or by gru_gates, replaced by the
  /// arguments of the gates.
  void* pre = nullptr;
  /// [directions, batch, rows of the phase]: products with the states; null: computed in the same launch.
  const void* product = nullptr;
  const void* h = nullptr;  ///< [directions, batch, hidden], before the step
  void* next = nullptr;     ///< after it; not h
  float* c = nullptr;       ///< of lstm, replaced
  void* reset_h = nullptr;  ///< [directions, batch, hidden]: between gru's two phases
  void* y = nullptr;        ///< result over time, or null
  RecurrentTape tape;
};
/// Bytes: weights from the second-level cache once for four sequences; 4 hidden + 2 rows a sequence.
void recurrent_step(On on, const RecurrentStep& step);

/// One step back. dh of a step is `product` + `direct` + dy; what it leaves behind for the step before is in
/// `direct` and, after a product of `step_grad` with r, in `product`.
struct RecurrentBack {
  RecurrentShape shape;
  RecurrentPhase phase = RecurrentPhase::rnn;
  int64_t step = 0;
  const void *pre = nullptr, *peephole = nullptr, *dy = nullptr;  ///< peephole and dy or null
  const int32_t* lengths = nullptr;
  RecurrentTape tape;
  const void* product = nullptr;  ///< [directions, batch, hidden]; of gru_gates: of the candidate's gradient
  float *direct = nullptr, *dc = nullptr;  ///< [directions, batch, hidden]
  void* step_grad = nullptr;               ///< [directions, batch, rows]: of what r is multiplied with
  void* dpre = nullptr;                    ///< [places, directions, rows]: of the arguments
  void* drec = nullptr;                    ///< the same of the products with r; null where those are the same
};
void recurrent_back(On on, const RecurrentBack& back);

/// States between a layer's operands or results and a run's buffers; any may be null.
struct RecurrentStates {
  RecurrentShape shape;
  const void *h0 = nullptr, *c0 = nullptr;  ///< as ONNX lays them out; null: zeros
  void *h = nullptr, *h_result = nullptr, *c_result = nullptr;
  float *c = nullptr, *wide_h = nullptr;
  const void* add = nullptr;  ///< to wide_h when it is stored
};
/// h (or wide_h) and c from h0 and c0.
void load_recurrent_states(On on, const RecurrentStates& states);
/// h_result from h (or wide_h + add), c_result from c.
void store_recurrent_states(On on, const RecurrentStates& states);

/// dpeephole [directions, 3, hidden] from dpre [places, directions, rows] and the cells.
void recurrent_peepholes(On on, const RecurrentShape& shape, const void* dpre, const RecurrentTape& tape,
                         void* dpeephole);

}  // namespace trireme::cuda
