// The f32 LSTM on packed products.
#pragma once

#include "ir/kernel.h"
#include "ops/rnn/recurrent_plan.h"

namespace trireme::ops {

/// Refuses options that these kernels do not have: they take default activations, no clip, time first.
ir::Refusal refuse_lstm_options(const RecurrentPlan& plan);

/// All inputs times W in one product, then one product with R per time step, gates vectorised. Constant
/// weights, default activations, no peepholes, clip or sequence lengths.
ir::Kernel lstm_packed_kernel();

/// The same for weights that are not constant, and its way back through time (of lstm_grad).
ir::Kernel lstm_live_kernel();
ir::Kernel lstm_grad_kernel();

}  // namespace trireme::ops
