// Max, average and global average pooling over channels-last f32 activations.
#pragma once

#include "backend/cpu/conv/conv_nhwc.h"

namespace trireme::cpu {

/// shape.c == shape.oc, groups unused. `out_h`, `out_w` are given because rounding up adds windows that
/// ConvShape lacks.
struct PoolArgs {
  ConvShape shape;
  int64_t out_h = 0, out_w = 0;
  const float* x = nullptr;
  float* y = nullptr;
  bool count_padding = false;  // averages divide by the window clipped to the padded image, else to the image
  Isa isa = best_isa();
};

void max_pool_nhwc(const PoolArgs& args, base::ThreadPool& pool);

size_t average_pool_workspace_bytes(const PoolArgs& args);
void average_pool_nhwc(const PoolArgs& args, void* workspace, base::ThreadPool& pool);

/// x[n, spatial, c] -> y[n, c]. Sums lines of `line` pixels apart, then the lines: a fixed order.
struct GlobalPoolArgs {
  int64_t n = 1, lines = 1, line = 1, c = 1;
  const float* x = nullptr;
  float* y = nullptr;
  Isa isa = best_isa();
};

void global_average_pool_nhwc(const GlobalPoolArgs& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
