// Packs right operands and runs plain, small and batched f32 products on the shared driver.
#include "backend/cpu/dense/gemm_f32.h"

#include <algorithm>
#include <atomic>

#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/dense/gemm_driver.h"
#include "backend/cpu/device/round_up.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

RowSource matrix_rows(const float* a, int64_t lda, int64_t k) {
  RowSource source;
  source.base = reinterpret_cast<const char*>(a);
  source.row_stride = lda * static_cast<int64_t>(sizeof(float));
  source.run = std::max<int64_t>(k, 1);
  source.taps_h = k > 0 ? 1 : 0;
  return source;
}

/// One panel of `width` columns from column `n0`, `valid` of them real: out[k][width].
void pack_panel(const MatrixB& b, int64_t n0, int valid, int width, float* out) {
  for (int64_t k = 0; k < b.k; ++k, out += width) {
    const float* row = b.data + k * b.ld + n0;
    for (int j = 0; j < valid; ++j) out[j] = row[j];
    for (int j = valid; j < width; ++j) out[j] = 0.0f;
  }
}

void pack_panel_transposed(const MatrixB& b, int64_t n0, int valid, int width, float* out) {
  for (int64_t k = 0; k < b.k; ++k) {
    for (int j = valid; j < width; ++j) out[k * width + j] = 0.0f;
  }
  for (int j = 0; j < valid; ++j) {
    const float* row = b.data + (n0 + j) * b.ld;
    for (int64_t k = 0; k < b.k; ++k) out[k * width + j] = row[k];
  }
}

/// Whole vectors of columns go through the register transpose.
void pack_panel_transposed_fast(const MatrixB& b, int64_t n0, int width, float* out,
                                const DenseKernels& kernels) {
  const float* rows[kRowSlots];
  for (int j0 = 0; j0 < width; j0 += kernels.width) {
    for (int j = 0; j < kernels.width; ++j) rows[j] = b.data + (n0 + j0 + j) * b.ld;
    kernels.transpose(rows, b.k, out + j0, width);
  }
}

/// A batch index and a run of rows of gemm_batched.
struct BatchedPiece {
  const BatchedGemmArgs& g;
  const DenseKernels& kernels;
  Isa isa;
  int64_t outer, inner, row_begin, row_end;
};

void run_batched_piece(const BatchedPiece& p, char* memory) {
  const BatchedGemmArgs& g = p.g;
  const float* b = g.b + p.outer * g.b_outer + p.inner * g.b_inner;
  const PackedMatrix packed = pack_b({b, g.k, g.n, g.ldb, g.b_transposed}, memory, p.isa);
  GemmJob job;
  job.m = p.row_end - p.row_begin;
  job.source = matrix_rows(g.a + p.outer * g.a_outer + p.inner * g.a_inner + p.row_begin * g.lda, g.lda, g.k);
  job.b = packed;
  job.c = g.c + p.outer * g.c_outer + p.inner * g.c_inner + p.row_begin * g.ldc;
  job.ldc = g.ldc;
  const GemmPlan plan = plan_gemm(job.m, g.n, job.source, p.kernels, {.threads = 1});
  run_gemm_alone(job, plan, memory + align64(packed_b_bytes(g.k, g.n, p.isa)));
  if (g.alpha == 1.0f) return;
  // Scaling the product, not an operand: the same rounding whether or not the caller folds alpha into
  // softmax.
  for (int64_t r = 0; r < job.m; ++r) {
    for (int64_t j = 0; j < g.n; ++j) job.c[r * g.ldc + j] *= g.alpha;
  }
}

}  // namespace

size_t packed_b_bytes(int64_t k, int64_t n, Isa isa) {
  const int64_t width = dense_kernels(isa).width;
  return static_cast<size_t>(k * ((n + width - 1) / width * width)) * sizeof(float) + kAlignment;
}

PackedMatrix pack_b(const MatrixB& b, void* memory, Isa isa) {
  const DenseKernels& kernels = dense_kernels(isa);
  float* out = reinterpret_cast<float*>(align64(memory));
  const PackedMatrix packed = {out, b.k, b.n, isa};
  for (int64_t n0 = 0; n0 < b.n; n0 += kernels.panel) {
    const int valid = static_cast<int>(std::min<int64_t>(kernels.panel, b.n - n0));
    const int width = valid > kernels.width ? kernels.panel : kernels.width;
    if (!b.transposed) {
      pack_panel(b, n0, valid, width, out);
    } else if (valid == width) {
      pack_panel_transposed_fast(b, n0, width, out, kernels);
    } else {
      pack_panel_transposed(b, n0, valid, width, out);
    }
    out += b.k * width;
  }
  return packed;
}

size_t gemm_workspace_bytes(int64_t m, int64_t k, int64_t n, int threads) {
  size_t bytes = 0;
  for (const Isa isa : usable_isas()) {
    // Any row stride: the plan may pack for one that is bad for the cache, so ask for both kinds.
    for (const int64_t lda : {k, int64_t{1024}}) {
      const GemmPlan plan = plan_gemm(std::max<int64_t>(m, 1), n, matrix_rows(nullptr, lda, k),
                                      dense_kernels(isa), {.threads = threads});
      bytes = std::max(bytes, static_cast<size_t>(plan.lanes) * plan.lane_bytes);
    }
  }
  return bytes + kAlignment;
}

void gemm(const GemmArgs& args, void* workspace, base::ThreadPool& pool) {
  const RowSource source = matrix_rows(args.a, args.lda, args.b.k);
  const GemmJob job = {source, args.m, args.b, args.c, args.ldc, args.epilogue};
  if (args.m == 0 || args.b.n == 0) return;
  run_gemm(job, plan_gemm(args.m, args.b.n, source, dense_kernels(args.b.isa), {.threads = pool.size()}),
           workspace, pool);
}

size_t gemm_batched_workspace_bytes(int64_t k, int64_t n, int threads) {
  size_t packed = 0;
  for (const Isa isa : usable_isas()) packed = std::max(packed, packed_b_bytes(k, n, isa));
  // A lane works alone on at most kMaxRows rows.
  return static_cast<size_t>(threads) * align64(align64(packed) + gemm_workspace_bytes(256, k, n, 1)) +
         kAlignment;
}

void gemm_batched(const BatchedGemmArgs& g, void* workspace, base::ThreadPool& pool, Isa isa) {
  const int64_t batches = g.outer * g.inner;
  if (batches == 0 || g.m == 0 || g.n == 0) return;
  // Rows are split only when batches alone do not feed the team: every piece packs its b again.
  constexpr int64_t kMaxRows = 256;
  int64_t pieces = (g.m + kMaxRows - 1) / kMaxRows;
  while (batches * pieces < pool.size() && g.m / (pieces * 2) >= 32) pieces *= 2;
  const int64_t tasks = batches * pieces;
  const int64_t lanes = std::min<int64_t>(tasks, pool.size());
  const size_t lane_bytes =
      align64(align64(packed_b_bytes(g.k, g.n, isa)) + gemm_workspace_bytes(kMaxRows, g.k, g.n, 1));
  char* memory = align64(workspace);
  const DenseKernels& kernels = dense_kernels(isa);
  std::atomic<int64_t> next{0};
  pool.run(lanes, [&](int64_t lane) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      const int64_t batch = i / pieces;
      const int64_t piece = i % pieces;
      run_batched_piece({g, kernels, isa, batch / g.inner, batch % g.inner, g.m * piece / pieces,
                         g.m * (piece + 1) / pieces},
                        memory + static_cast<size_t>(lane) * lane_bytes);
    }
  });
}

}  // namespace trireme::cpu
