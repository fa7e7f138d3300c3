// f32 products of groups of rows, each group by a packed matrix of its own.
#pragma once

#include <span>

#include "backend/cpu/dense/gemm_f32.h"
#include "backend/cpu/device/row_groups.h"

namespace trireme::cpu {

/// y [rows, n]: rows of a group times its matrix, plus its bias. Matrices are of one size, packed for one
/// level; those of no group are not read. x [rows, k], bias [matrices, n] or null.
struct GemmGroups {
  std::span<const RowGroup> groups;
  std::span<const PackedMatrix> matrices;
  const float *x = nullptr, *bias = nullptr;
  float* y = nullptr;
  size_t lane_bytes = 0;  ///< gemm_groups_lane_bytes() of at least so many rows
};

/// Bytes that one member of the team takes for at most `rows` rows; the workspace has as many times this as
/// the team has members.
size_t gemm_groups_lane_bytes(int64_t rows, int64_t k, int64_t n);

/// The team meets once. A result is the chain of multiply-adds that gemm() makes of it: a row's bits depend
/// neither on its mates nor on the team. The matrix of a group is read once for all its rows.
/// `workspace` is aligned to 64 bytes.
void gemm_groups(const GemmGroups& call, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
