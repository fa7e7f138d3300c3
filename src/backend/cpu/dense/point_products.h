// The middle of Winograd's forms: a block of transformed tiles times the transformed weights, a product for
// each point, within the memory of one lane.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/tiles/dense_isa.h"

namespace trireme::cpu {

/// V [points, tiles, depth] times weights [points, depth, columns] is M [points, tiles, columns].
struct PointBlock {
  int points = 0;
  int64_t tiles = 0, depth = 0, columns = 0;
};

/// Floats between the points of V (or M): a line more than the rows, so that the streams of a tile do not
/// fight for one set of the first-level cache.
inline int64_t point_floats(int64_t tiles, int64_t channels) { return tiles * channels + 16; }

/// Bytes of V, M and the products' own memory, which follow each other in a lane. Aligned like the lane.
struct PointLane {
  size_t v = 0, m = 0, product = 0;
  size_t bytes() const { return v + m + product; }
};

/// What blocks of `largest.tiles` tiles, or of one fewer, take.
PointLane point_lane(const PointBlock& largest);

/// Weights of every point, packed for products on `isa`, `stride` floats from point to point.
struct PackedPoints {
  const float* data = nullptr;
  int64_t stride = 0;
  Isa isa = Isa::portable;
};

/// M from V in a lane's memory.
void multiply_points(const PointBlock& block, const PackedPoints& weights, const PointLane& lane,
                     char* memory);

}  // namespace trireme::cpu
