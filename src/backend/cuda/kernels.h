// Launchers of the device's kernels, for ops: host functions with the addresses and extents of one launch.
#pragma once

#include <cstdint>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace trireme::cuda {

/// Where a launch goes and what its elements are: f32, f16 or bf16.
struct On {
  tensor::Stream& stream;
  tensor::DType dtype = tensor::DType::f32;
};

/// See row_kernels.h. Rows of n elements one after another, the first 16-byte aligned.
struct RowArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t rows = 0, n = 0;
};
void softmax(On on, const RowArgs& args);

struct NormArgs {
  RowArgs row;
  const float *scale = nullptr, *bias = nullptr;
  float *mean = nullptr, *inv_std = nullptr;
  float epsilon = 1e-5f;
};
void layer_norm(On on, const NormArgs& args);
void rms_norm(On on, const NormArgs& args);

/// dx in row.y from dy in row.x and x; dscale and dbias [n] through pieces of
/// layer_norm_grad_workspace_bytes().
struct LayerNormGradArgs {
  RowArgs row;
  const void* x = nullptr;
  const float *scale = nullptr, *mean = nullptr, *inv_std = nullptr;
  float *dscale = nullptr, *dbias = nullptr;
  void* workspace = nullptr;
};
int64_t layer_norm_grad_workspace_bytes(int64_t rows, int64_t n);
void layer_norm_grad(On on, const LayerNormGradArgs& args);

struct CrossEntropyArgs {
  const void* logits = nullptr;
  const int64_t* target = nullptr;
  float *loss = nullptr, *log_sum_exp = nullptr;  ///< [rows]
  uint8_t* correct = nullptr;                     ///< [rows]
  int64_t rows = 0, n = 0;
};
void cross_entropy(On on, const CrossEntropyArgs& args);
/// `dloss`: one number in device memory.
void cross_entropy_grad(On on, const CrossEntropyArgs& args, const float* dloss, void* dlogits);

struct DropoutArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t n = 0;
  uint64_t first = 0, seed = 0, stream = 0;
  uint32_t threshold = 0;
  float scale = 1;
};
void dropout(On on, const DropoutArgs& args);

/// y [batch, columns, rows] = x [batch, rows, columns] transposed.
void transpose(On on, const void* x, void* y, const int64_t (&extents)[3]);

struct GatherArgs {
  const void* table = nullptr;
  const int64_t* index = nullptr;
  void* y = nullptr;
  int64_t count = 0, n = 0, first = 0, held = 0;
};
void gather_rows(On on, const GatherArgs& args);

/// w: see decode_kernels.h.
struct QuantizedArgs {
  const void* x = nullptr;
  const uint8_t* w = nullptr;
  const float* scale = nullptr;
  void* y = nullptr;
  int64_t rows = 0, k = 0, group = 0;
  int batch = 1;  ///< at most 8
  int bits = 8;   ///< 8 or 4
};
void quantized_rows(On on, const QuantizedArgs& args);

}  // namespace trireme::cuda
