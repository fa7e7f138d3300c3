// The CPU kernels of the recurrent layers, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> rnn_cpu_kernels();
std::vector<ir::Kernel> gru_cpu_kernels();
std::vector<ir::Kernel> lstm_cpu_kernels();

}  // namespace trireme::ops
