// Internal: one blocked driver for 8-bit products and convolutions.
#pragma once

#include <span>

#include "backend/cpu/dense/gemm_driver.h"
#include "backend/cpu/quant/qgemm_s8.h"
#include "backend/cpu/tiles/qgemm_kernels.h"

namespace trireme::cpu {

/// One 8-bit product: c[m, b.n] = requantise(source * b). The source's runs are bytes. With several groups,
/// all of b's extents: group g reads the bytes g * source.run behind those of the source, also of its zeros,
/// and writes the columns from g * b.n on; vectors of the epilogue run over the columns of all.
struct QuantJob {
  RowSource source;
  int64_t m = 0;
  QuantInput input;
  PackedQuantMatrix b;
  std::span<const PackedQuantMatrix> groups = {};  ///< the first is `b`; empty: `b` alone
  void* c = nullptr;
  int64_t ldc = 0;
  QuantEpilogue epilogue;
};

/// Cuts the job; the plan's depth is counted in 32-bit groups.
GemmPlan plan_quant(const RowSource& source, int64_t m, int64_t n, Isa isa, int threads);

/// Whether one job runs all groups of a product: the bytes of a group's rows are read where they are, and no
/// sums of them are wanted.
bool joins_groups(const QuantJob& job);
/// The plan of such a job: tiles of rows, each with all groups one after another.
GemmPlan plan_quant_groups(const QuantJob& job, int threads);

/// Runs the job under `plan`; `workspace` holds plan.lanes * plan.lane_bytes + 64.
void run_quant(const QuantJob& job, const GemmPlan& plan, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
