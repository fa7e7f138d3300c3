// Products of f32 rows with weights of 4, 8 or 16 bits, unpacked in registers: one row of x streams the
// weights once.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/device/row_groups.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// What the bytes of weights are: whole numbers, 8-bit floats (E4M3, NaN 0x7f and 0xff), or 16-bit floats.
enum class WeightCodes : uint8_t { int8, int4, e4m3, bf16, f16 };

/// w [n, k bits / 8]: bytes, or of 4 bits blocks of 32 weights in 16 bytes, byte i holding weights i (low
/// half) and i + 16; scale and zero (or null) [n, k / group]. weight = scale (q - zero); without zeros 0 is
/// taken for 8 bits, 8 for 4. Floats have no zeros, those of 16 bits no scales and no groups either. k is a
/// multiple of group, group of 32.
struct WeightRows {
  const uint8_t* w = nullptr;
  const float* scale = nullptr;
  const int8_t* zero = nullptr;
  WeightCodes codes = WeightCodes::int8;
  int64_t n = 0, k = 0, group = 64;
};

/// y [m, n] = x [m, k] w' + bias [n] (or null). The sum of a result is the same chain of multiply-adds
/// whatever m and the team: a row's bits do not depend on its mates. m = 1 reads n k bits / 8 + 4 n k / group
/// bytes.
struct WeightRowsCall {
  WeightRows weights;
  const float *x = nullptr, *bias = nullptr;
  float* y = nullptr;
  int64_t m = 0;
};
void weight_rows(const WeightRowsCall& call, base::ThreadPool& pool);

/// Groups of rows, each by a matrix of its own: y [rows, n]. `weights`: the first matrix, [n, k]; the others
/// and their scales follow it, bias [matrices, n] or null. Matrices of no group are not read; one of a group
/// is read once for some tens of rows. The team meets once; bits as of weight_rows().
struct WeightGroupsCall {
  WeightRows weights;
  std::span<const RowGroup> groups;
  const float *x = nullptr, *bias = nullptr;
  float* y = nullptr;
};
void weight_row_groups(const WeightGroupsCall& call, base::ThreadPool& pool);

}  // namespace trireme::cpu
