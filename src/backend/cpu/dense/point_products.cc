// One plan for the products of all points; each asks for the weights of the next.
#include "backend/cpu/dense/point_products.h"

#include <algorithm>

#include "backend/cpu/dense/gemm_driver.h"
#include "backend/cpu/device/round_up.h"
#include "backend/cpu/tiles/dense_kernels.h"

namespace trireme::cpu {

PointLane point_lane(const PointBlock& largest) {
  const auto bytes = [&](int64_t channels) {
    return align64(static_cast<size_t>(largest.points * point_floats(largest.tiles, channels)) *
                   sizeof(float));
  };
  PointLane lane = {bytes(largest.depth), bytes(largest.columns), 0};
  for (int64_t m = std::max<int64_t>(1, largest.tiles - 1); m <= largest.tiles; ++m)
    lane.product =
        std::max(lane.product, align64(gemm_workspace_bytes(m, largest.depth, largest.columns, 1)));
  return lane;
}

void multiply_points(const PointBlock& block, const PackedPoints& weights, const PointLane& lane,
                     char* memory) {
  GemmJob job;
  job.source.row_stride = block.depth * static_cast<int64_t>(sizeof(float));
  job.source.run = block.depth;
  job.m = block.tiles;
  job.ldc = block.columns;
  const GemmPlan plan =
      plan_gemm(block.tiles, block.columns, job.source, dense_kernels(weights.isa), {.threads = 1});
  for (int p = 0; p < block.points; ++p) {
    job.source.base =
        memory + p * point_floats(block.tiles, block.depth) * static_cast<int64_t>(sizeof(float));
    job.b = {weights.data + p * weights.stride, block.depth, block.columns, weights.isa};
    job.c = reinterpret_cast<float*>(memory + lane.v) + p * point_floats(block.tiles, block.columns);
    job.asked = p > 0;
    job.next = p + 1 < block.points ? job.b.data + weights.stride : nullptr;
    run_gemm_alone(job, plan, memory + lane.v + lane.m);
  }
}

}  // namespace trireme::cpu
