// Recurrent layers on packed products.
#pragma once

#include "ir/kernel.h"

namespace trireme::ops {

/// rnn (1 gate), gru (3) or lstm (4) in f32 with constant weights and every option: the inputs of all steps
/// times W in one product, then one product with R a step (two in a gru whose reset gate scales the state)
/// and gates by vectors. The work of a row of the batch does not depend on the others.
ir::Kernel recurrent_packed_kernel(size_t gates);

}  // namespace trireme::ops
