// The CPU kernels of the recurrent layers, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> rnn_cpu_kernels();
std::vector<ir::Kernel> gru_cpu_kernels();
std::vector<ir::Kernel> lstm_cpu_kernels();
/// The backward op of the layer with this many gates: 1 rnn, 3 gru, 4 lstm.
std::vector<ir::Kernel> recurrent_grad_cpu_kernels(size_t gates);

}  // namespace trireme::ops
