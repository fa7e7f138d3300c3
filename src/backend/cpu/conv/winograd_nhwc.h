// Winograd form of f32 3 x 3 convolutions over channels-last activations: fewer multiplications, epilogue
// fused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/conv/conv_nhwc.h"

namespace trireme::cpu {

/// Outputs per side of a tile. A tile of m x m outputs costs (m + 2)^2 products a channel pair instead of
/// 9 m^2.
enum class WinogradTile : uint8_t { two = 2, four = 4 };

/// True for 3 x 3 kernels of one group with stride 1, any dilation, and paddings of 0 to 2 dilations.
bool winograd_fits(const ConvShape& shape);

/// For constant weights: the larger tile up to 128 channels in, else the smaller. At 256 the larger one's
/// weights take longer to come from memory than four cores take to multiply by them.
inline WinogradTile winograd_tile(const ConvShape& shape) {
  return shape.c <= 128 ? WinogradTile::four : WinogradTile::two;
}

/// Transformed weights: one packed right operand [c, oc] per point of the transformed tile.
struct PackedWinograd {
  const float* data = nullptr;
  int64_t point_floats = 0;
  WinogradTile tile = WinogradTile::four;
  Isa isa = Isa::portable;
};

/// 16/9 (tiles of two) or 36/9 (tiles of four) of the bytes of the weights, and padding.
size_t packed_winograd_bytes(const ConvShape& shape, WinogradTile tile, Isa isa = best_isa());

/// Transforms ONNX weights [oc, c, 3, 3] into `memory` on the calling thread; conv_pack.h does it with a
/// team.
PackedWinograd pack_winograd(const ConvShape& shape, const float* weights, WinogradTile tile, void* memory,
                             Isa isa = best_isa());

/// 2 x 2 windows of stride 2, of an image [n, h, w, c] whose last odd line and column lie in none.
/// which [n, h / 2, w / 2, c] says which element was the window's maximum, line by line; kNoMaximum: none,
/// since a rectifier left nothing above zero.
inline constexpr uint8_t kNoMaximum = 4;

struct WinogradArgs {
  ConvShape shape;
  const float* x = nullptr;
  PackedWinograd weights;
  float* y = nullptr;
  Epilogue epilogue;
  /// Floats between pixels of x, and of y and the residual, where they are a group's channels among others;
  /// 0: shape.c and shape.oc. Not together with what follows.
  int64_t x_pixel = 0, y_pixel = 0;
  /// Not null: x [n, h / 2, w / 2, c] holds a value for each window of the input, which stands where x_which
  /// [like x] says; all other inputs are zero. Tiles of four only.
  const uint8_t* x_which = nullptr;
  /// y is [n, out_h / 2, out_w / 2, oc] and takes the maximum of each window of outputs (the first of equal
  /// ones, the last NaN). Of the activations only a rectifier; no residual, no gate.
  bool takes_maxima = false;
  /// Of maxima, like y: says where they stood. Null: nobody asks.
  uint8_t* which = nullptr;
  /// Not null: like y; outputs become zero where it is not above zero.
  const float* gate = nullptr;
};

size_t winograd_workspace_bytes(const ConvShape& shape, WinogradTile tile, int threads);

/// y = A^T [sum over c of (G w G^T) * (B^T x B)] A per tile, then the epilogue. Each output is the same chain
/// of operations whatever the team, the blocks or its batch mates. Source: Lavin & Gray 2015. With dilation d
/// the outputs of each of d x d phases form a dense convolution of their own, whose tiles are d pixels apart.
void winograd_nhwc(const WinogradArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
