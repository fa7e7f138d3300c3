// The f32 LSTM on packed products.
#pragma once

#include "ir/kernel.h"

namespace trireme::ops {

/// All inputs times W in one product, then one product with R per time step, gates vectorised. Constant
/// weights, default activations, no peepholes, clip or sequence lengths.
ir::Kernel lstm_packed_kernel();

}  // namespace trireme::ops
