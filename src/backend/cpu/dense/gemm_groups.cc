// f32 products of groups of rows: some panels of one matrix by its rows are a task.
#include "backend/cpu/dense/gemm_groups.h"

#include <algorithm>
#include <atomic>

#include "backend/cpu/dense/gemm_driver.h"
#include "backend/cpu/tiles/dense_kernels.h"

namespace trireme::cpu {
namespace {

constexpr size_t kLine = 64;
constexpr int64_t kTaskBytes = 131072;  // of weights, for few rows

/// Rows of one group by panels [first, first + count) of its matrix.
struct Piece {
  const GemmGroups& call;
  const RowGroup& group;
  int64_t first, count;
};

void run_piece(const Piece& p, char* memory) {
  const PackedMatrix& whole = p.call.matrices[static_cast<size_t>(p.group.matrix)];
  const DenseKernels& kernels = dense_kernels(whole.isa);
  const int64_t column = p.first * kernels.panel;
  GemmJob job;
  job.m = p.group.rows;
  job.source.base = reinterpret_cast<const char*>(p.call.x + p.group.first * whole.k);
  job.source.row_stride = whole.k * static_cast<int64_t>(sizeof(float));
  job.source.run = std::max<int64_t>(whole.k, 1);
  job.source.taps_h = whole.k > 0 ? 1 : 0;
  // Panels before the last one are full.
  job.b = {whole.data + column * whole.k, whole.k, std::min(p.count * kernels.panel, whole.n - column),
           whole.isa};
  job.c = p.call.y + p.group.first * whole.n + column;
  job.ldc = whole.n;
  if (p.call.bias != nullptr) job.epilogue.bias = p.call.bias + p.group.matrix * whole.n + column;
  run_gemm_alone(job, plan_gemm(job.m, job.b.n, job.source, kernels, {.threads = 1}), memory);
}

}  // namespace

size_t gemm_groups_lane_bytes(int64_t rows, int64_t k, int64_t n) {
  size_t lane = 0;
  for (int64_t m = 1; m < 2 * rows; m *= 2)
    lane = std::max(lane, gemm_workspace_bytes(std::min(m, rows), k, n, 1));
  return (lane + kLine - 1) / kLine * kLine;
}

void gemm_groups(const GemmGroups& call, void* workspace, base::ThreadPool& pool) {
  if (call.groups.empty()) return;
  const PackedMatrix& first = call.matrices[0];
  const DenseKernels& kernels = dense_kernels(first.isa);
  const int64_t panels = (first.n + kernels.panel - 1) / kernels.panel;
  const int64_t bytes = std::max<int64_t>(1, first.k * kernels.panel * 4);
  const int64_t each = std::clamp<int64_t>(kTaskBytes / bytes, 1, panels);
  const int64_t pieces = (panels + each - 1) / each;
  const int64_t tasks = static_cast<int64_t>(call.groups.size()) * pieces;
  const auto lanes = std::min<int64_t>(tasks, pool.size());
  auto* memory = static_cast<char*>(workspace);
  std::atomic<int64_t> next{0};
  pool.run(lanes, [&](int64_t lane) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      const int64_t panel = i % pieces * each;
      run_piece({call, call.groups[static_cast<size_t>(i / pieces)], panel, std::min(each, panels - panel)},
                memory + static_cast<size_t>(lane) * call.lane_bytes);
    }
  });
}

}  // namespace trireme::cpu
