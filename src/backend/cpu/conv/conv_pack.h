// Packs convolution weights with a team: forward, and turned around for the gradient towards x.
#pragma once

#include "backend/cpu/conv/conv_nhwc.h"
#include "backend/cpu/conv/winograd_nhwc.h"

namespace trireme::cpu {

/// ONNX weights [oc, c / groups, kh, kw] as the right operand of a product, per group: element (kernel row i,
/// kernel column j, depth channel d, column n) is the weight of tap (first_h + i step_h, first_w + j step_w)
/// between d and n. Forward, columns are output channels; backward they are input channels, and the taps run
/// from the last to the first, every stride-th.
struct WeightView {
  const float* data = nullptr;
  int64_t groups = 1, depth = 0, columns = 0;  // channels of one group
  int kh = 1, kw = 1;                          // extents in memory
  int first_h = 0, step_h = 1, taps_h = 1;
  int first_w = 0, step_w = 1, taps_w = 1;
  bool backward = false;

  int taps() const { return taps_h * taps_w; }
  int source_tap(int tap) const {
    return (first_h + tap / taps_w * step_h) * kw + first_w + tap % taps_w * step_w;
  }
};

/// The weights of `shape` as its forward product reads them.
WeightView forward_view(const ConvShape& shape, const float* weights);

/// The weights of `shape` as the gradient towards x at stride 1 reads them: all taps, turned around.
WeightView backward_view(const ConvShape& shape, const float* weights);

/// Whether the taps are few enough to be turned in the first-level cache, which pack_view does.
bool pack_view_takes(const WeightView& view);
size_t packed_view_bytes(const WeightView& view, Isa isa = best_isa());

/// Packs into `memory` (packed_view_bytes) with the team. Reads and writes the weights once; no scratch.
PackedConv pack_view(const WeightView& view, void* memory, base::ThreadPool& pool, Isa isa = best_isa());

/// What pack_view gave for `memory`, without packing again.
PackedConv packed_view(const WeightView& view, const void* memory, Isa isa = best_isa());

/// Points of the transformed tile apart in packed Winograd weights, in floats.
int64_t winograd_point_floats(int64_t depth, int64_t columns, Isa isa = best_isa());

size_t winograd_view_bytes(const WeightView& view, WinogradTile tile, Isa isa = best_isa());

/// G w G^T of a view of 3 x 3 taps and one group, packed as winograd_nhwc reads it, in f32.
PackedWinograd transform_view(const WeightView& view, WinogradTile tile, void* memory, base::ThreadPool& pool,
                              Isa isa = best_isa());

}  // namespace trireme::cpu
