// Internal: one blocked driver for 8-bit products and convolutions.
#pragma once

#include "backend/cpu/dense/gemm_driver.h"
#include "backend/cpu/quant/qgemm_s8.h"
#include "backend/cpu/tiles/qgemm_kernels.h"

namespace trireme::cpu {

/// One 8-bit product: c[m, b.n] = requantise(source * b). The source's runs are bytes.
struct QuantJob {
  RowSource source;
  int64_t m = 0;
  QuantInput input;
  PackedQuantMatrix b;
  void* c = nullptr;
  int64_t ldc = 0;
  QuantEpilogue epilogue;
};

/// Cuts the job; the plan's depth is counted in 32-bit groups.
GemmPlan plan_quant(const RowSource& source, int64_t m, int64_t n, Isa isa, int threads);

/// Runs the job under `plan`; `workspace` holds plan.lanes * plan.lane_bytes + 64.
void run_quant(const QuantJob& job, const GemmPlan& plan, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
