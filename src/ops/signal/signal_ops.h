// Fourier transforms and window functions: what schema and kernel files share.
#pragma once

#include "ir/kernel.h"
#include "ops/grad.h"

namespace trireme::ops {

std::vector<ir::Kernel> dft_cpu_kernels();
std::vector<ir::Kernel> stft_cpu_kernels();
Gradients dft_rule(GradBuilder& g);
Gradients stft_rule(GradBuilder& g);
/// Products with the matrix of the transform; lengths whose matrix is above 64 MiB stay as they are.
std::vector<ValueId> expand_dft(ir::Graph& graph, const ir::Node& node);
std::vector<ValueId> expand_stft(ir::Graph& graph, const ir::Node& node);
std::vector<ir::Kernel> mel_weight_matrix_cpu_kernels();
/// Window w_i = a0 - a1 cos(2 pi i / m) + a2 cos(4 pi i / m).
struct WindowCoefficients {
  double a0, a1, a2;
};
std::vector<ir::Kernel> window_cpu_kernels(WindowCoefficients coefficients);

}  // namespace trireme::ops
