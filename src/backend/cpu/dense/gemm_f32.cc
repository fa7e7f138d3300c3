// Packs right operands and runs plain, small and batched f32 products on the shared driver.
#include "backend/cpu/dense/gemm_f32.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/dense/gemm_driver.h"
#include "backend/cpu/device/round_up.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

// Of a matrix that is packed row by row, what one task of the team copies.
constexpr int64_t kPanelsTogether = 8, kRowsTogether = 64;

RowSource matrix_rows(const float* a, int64_t lda, int64_t k) {
  RowSource source;
  source.base = reinterpret_cast<const char*>(a);
  source.row_stride = lda * static_cast<int64_t>(sizeof(float));
  source.run = std::max<int64_t>(k, 1);
  source.taps_h = k > 0 ? 1 : 0;
  return source;
}

/// Where a panel of columns stands in a packed operand: [k][width], of which `valid` columns are real.
struct PackedPanel {
  PackedPanel(const MatrixB& b, int64_t index, const DenseKernels& kernels)
      : column(index * kernels.panel),
        valid(static_cast<int>(std::min<int64_t>(kernels.panel, b.n - column))),
        width(valid > kernels.width ? kernels.panel : kernels.width) {}
  int64_t column;  // the first one in the matrix
  int valid, width;
};

/// Rows [begin, end) of panels [first, last). A row is read through all of these panels at once: read panel
/// by panel, its lines would come from memory in jumps of a whole row.
struct PanelRows {
  int64_t begin, end, first, last;
};

void pack_panel_rows(const MatrixB& b, const PanelRows& part, const DenseKernels& kernels, float* packed) {
  for (int64_t k = part.begin; k < part.end; ++k) {
    for (int64_t i = part.first; i < part.last; ++i) {
      const PackedPanel p(b, i, kernels);
      float* out = packed + p.column * b.k + k * p.width;
      std::memcpy(out, b.data + k * b.ld + p.column, static_cast<size_t>(p.valid) * sizeof(float));
      std::fill(out + p.valid, out + p.width, 0.0f);
    }
  }
}

/// Vectors of columns go through the register transpose; where columns are missing, the last one stands in
/// and is overwritten by zeros.
void pack_panel_transposed(const MatrixB& b, const PackedPanel& p, const DenseKernels& kernels,
                           float* packed) {
  float* out = packed + p.column * b.k;
  const float* rows[kRowSlots];
  for (int j0 = 0; j0 < p.width; j0 += kernels.width) {
    for (int j = 0; j < kernels.width; ++j)
      rows[j] = b.data + (p.column + std::min(j0 + j, p.valid - 1)) * b.ld;
    kernels.transpose(rows, b.k, out + j0, p.width);
  }
  for (int64_t k = 0; k < b.k && p.valid < p.width; ++k)
    std::fill(out + k * p.width + p.valid, out + (k + 1) * p.width, 0.0f);
}

/// A matrix cut into tasks that pack it in any order: its panels, or bands of rows of some panels.
class PackTasks {
 public:
  PackTasks(const MatrixB& b, void* memory, Isa isa)
      : b_(b), kernels_(dense_kernels(isa)), isa_(isa), out_(reinterpret_cast<float*>(align64(memory))) {}
  int64_t count() const {
    return b_.transposed ? panels_ : groups_ * ((b_.k + kRowsTogether - 1) / kRowsTogether);
  }
  PackedMatrix packed() const { return {out_, b_.k, b_.n, isa_}; }
  void run(int64_t task) const {
    if (b_.transposed) return pack_panel_transposed(b_, PackedPanel(b_, task, kernels_), kernels_, out_);
    const int64_t row = task / groups_ * kRowsTogether, panel = task % groups_ * kPanelsTogether;
    pack_panel_rows(
        b_, {row, std::min(b_.k, row + kRowsTogether), panel, std::min(panels_, panel + kPanelsTogether)},
        kernels_, out_);
  }

 private:
  const MatrixB& b_;
  const DenseKernels& kernels_;
  Isa isa_;
  float* out_;
  int64_t panels_ = (b_.n + kernels_.panel - 1) / kernels_.panel;
  int64_t groups_ = (panels_ + kPanelsTogether - 1) / kPanelsTogether;
};

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
  PackTasks tasks(b, memory, isa);
  for (int64_t i = 0; i < tasks.count(); ++i) tasks.run(i);
  return tasks.packed();
}

PackedMatrix pack_b(const MatrixB& b, void* memory, base::ThreadPool& pool, Isa isa) {
  PackTasks tasks(b, memory, isa);
  pool.run(tasks.count(), [&](int64_t i) { tasks.run(i); });
  return tasks.packed();
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
