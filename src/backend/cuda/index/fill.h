// Launchers of tensors made from places: ranges, diagonals, triangles, one-hot codes, reversed runs, and sums
// back over padding.
#pragma once

#include "backend/cuda/index/copy.h"
#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// y[i] = start + i delta, both numbers of y's type in device memory.
void range(On on, const void* start, const void* delta, void* y, int64_t n);

/// Ones on diagonal k of [rows, columns].
void eye(On on, void* y, int64_t rows, int64_t columns, int64_t k);

/// The upper (lower) part of matrices [count, rows, columns] from (to) diagonal *k, or 0 where k is null.
struct TriluArgs {
  const void* x = nullptr;
  void* y = nullptr;
  const int64_t* k = nullptr;
  int64_t count = 0, rows = 0, columns = 0, unit_bytes = 4;
  bool is_upper = true;
};
void trilu(tensor::Stream& stream, const TriluArgs& args);

/// y [outer, depth, inner] = values[1] where the index is, values[0] elsewhere; indices [outer, inner] of any
/// type with arithmetic, negative ones from the end.
struct OneHotArgs {
  const void* index = nullptr;
  tensor::DType index_type = tensor::DType::i64;
  const void* values = nullptr;
  void* y = nullptr;
  int64_t outer = 1, depth = 0, inner = 1, unit_bytes = 4;
};
void one_hot(tensor::Stream& stream, const OneHotArgs& args);

/// x [time, batch, row] or, with batch_first, [batch, time, row]: the first lengths[b] steps backwards.
struct ReverseArgs {
  const void* x = nullptr;
  void* y = nullptr;
  const int64_t* lengths = nullptr;
  int64_t time = 0, batch = 0, row_units = 0, unit_bytes = 4;
  bool batch_first = false;
};
void reverse_runs(tensor::Stream& stream, const ReverseArgs& args);

/// dx [outer, n, inner] from dy [outer, padded, inner]: sums over the places that padding copied, in their
/// order. f32 operands; `rounds`: dx of `on.dtype`, `widens`: dy of it.
struct PadGradAxis {
  const void* dy = nullptr;
  void* dx = nullptr;
  int64_t outer = 1, padded = 0, n = 0, inner = 1, before = 0;
  PadMode mode = PadMode::reflect;
  bool widens = false, rounds = false;
};
void pad_grad(On on, const PadGradAxis& args);

}  // namespace trireme::cuda
