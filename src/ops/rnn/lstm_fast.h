// The f32 LSTM on packed products.
#pragma once

#include "ir/kernel.h"

namespace trireme::ops {

/// All inputs times W in one product, then one product with R per time step, gates vectorised. Constant
/// weights, default activations, no peepholes, clip or sequence lengths.
ir::Kernel lstm_packed_kernel();

/// The same for weights that are not constant, and its way back through time (of lstm_grad).
ir::Kernel lstm_live_kernel();
ir::Kernel lstm_grad_kernel();

}  // namespace trireme::ops
