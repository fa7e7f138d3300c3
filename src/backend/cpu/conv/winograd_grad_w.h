// Winograd form of the weight gradient of 3 x 3 convolutions: sums over tiles at 36 points.
#pragma once

#include "backend/cpu/conv/conv_grad_w.h"

namespace trireme::cpu {

size_t winograd_grad_w_bytes(const ConvShape& shape, int threads);

/// dw = G^T [sum over tiles of (A dy A^T) (B^T x B)] G for the shapes of winograd_fits, x nhwc: each point is
/// a product of depth tiles, a quarter of the multiplications. Tiles are summed in order, group after group;
/// nothing depends on the team.
void winograd_grad_w(const ConvGradWArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
