// Launchers of draws from distributions over a row.
#pragma once

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// y [rows] by settings [rows, columns] and counters [rows, 2] in device memory: see sample_tokens in
/// ops/random. `seen` [places, n] and `row_places` [rows]: null without penalties.
struct SampleArgs {
  const void* x = nullptr;
  const float* settings = nullptr;
  const int64_t* counters = nullptr;
  const int32_t* seen = nullptr;
  const int32_t* row_places = nullptr;
  int64_t* y = nullptr;
  float* log_probability = nullptr;  ///< [rows]; null: nobody asks
  int64_t rows = 0, n = 0, columns = 4, places = 0;
};
/// Rows of 16,384 tokens and more by many blocks in three launches, shorter ones by one block each in one;
/// the bits are the same. `workspace`: sample_workspace_bytes(), aligned to 8 bytes.
void sample_tokens(On on, const SampleArgs& args, void* workspace);
int64_t sample_workspace_bytes(int64_t rows, int64_t n);
/// A block a row, however long.
void sample_tokens_by_rows(On on, const SampleArgs& args);

/// y [rows, n] of `on.dtype` from x [rows, n], allowed [rows, words], ids and biases [rows, most]: see
/// edit_logits in ops/random.
struct EditArgs {
  const void* x = nullptr;
  const int32_t* allowed = nullptr;
  const int32_t* ids = nullptr;
  const float* biases = nullptr;
  void* y = nullptr;
  int64_t rows = 0, n = 0, words = 0, most = 0;
};
void edit_logits(On on, const EditArgs& args);

/// See count_tokens and take_tokens in ops/random. `fault`, `step`: as in ir::RunArgs.
struct TokenArgs {
  const int32_t* at = nullptr;  ///< [count]: place of a row, or row of a token
  int64_t count = 0, extent = 0, n = 0;
  int64_t* fault = nullptr;
  int64_t step = 0;
};
/// seen [extent, n] += 2 at (at[i], tokens[i]).
void count_tokens(tensor::Stream& stream, const TokenArgs& args, int32_t* seen, const int64_t* tokens);
/// y[i] = at[i] < 0 ? ids[i] : chosen[at[i]], chosen [extent].
void take_tokens(tensor::Stream& stream, const TokenArgs& args, const int64_t* ids, const int64_t* chosen,
                 int64_t* y);

/// y [rows, samples] of `on.dtype` from x [rows, classes].
struct MultinomialArgs {
  const void* x = nullptr;
  tensor::DType x_type = tensor::DType::f32;
  void* y = nullptr;
  int64_t rows = 0, classes = 0, samples = 0;
  uint64_t seed = 0;
};
void multinomial(On on, const MultinomialArgs& args);

}  // namespace trireme::cuda
