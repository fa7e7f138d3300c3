// The gradient of a channels-last convolution towards its input, on weights that change every step.
#pragma once

#include <functional>

#include "backend/cpu/conv/conv_pack.h"

namespace trireme::cpu {

/// dx[n, h, w, c] from dy[n, out_h, out_w, oc] and ONNX weights of the convolution `shape`.
struct ConvGradXArgs {
  ConvShape shape;
  const float* dy = nullptr;
  const float* weights = nullptr;
  float* dx = nullptr;
  /// In Winograd form only, see WinogradArgs: dy is of the windows of a maximum behind the convolution; dx
  /// vanishes where `gate` [like dx] is not above zero.
  const uint8_t* which = nullptr;
  const float* gate = nullptr;
  /// By phases only, which is how a transposed convolution runs forward: weights that pack_phases packed
  /// ahead instead of `weights`, and what each of the c channels begins with. Null: packed now; zeros.
  const void* packed = nullptr;
  const float* bias = nullptr;
};

/// The convolution over dy that a convolution of stride 1 is backwards: taps turned around, channels swapped.
/// Paddings may come out negative.
ConvShape backward_shape(const ConvShape& shape);

/// True if backward_shape(shape) can run as a product over dy: stride 1, and no negative padding where dy is
/// copied with its padding.
bool conv_grad_x_direct_fits(const ConvShape& shape);
size_t conv_grad_x_direct_bytes(const ConvShape& shape, int threads);
/// The forward product on packed weights turned around: each element is one multiply-add chain.
void conv_grad_x_direct(const ConvGradXArgs& args, void* workspace, base::ThreadPool& pool);

/// True for stride 1 and the shapes of winograd_fits.
bool conv_grad_x_winograd_fits(const ConvShape& shape);
size_t conv_grad_x_winograd_bytes(const ConvShape& shape, int threads);
void conv_grad_x_winograd(const ConvGradXArgs& args, void* workspace, base::ThreadPool& pool);

/// True for at most 4096 phases, one for each pair of remainders modulo the strides: each takes time, even
/// one without pixels.
bool conv_grad_x_has_few_phases(const ConvShape& shape);

/// True for few phases, with dilation 1.
bool conv_grad_x_phases_fits(const ConvShape& shape);
size_t conv_grad_x_phases_bytes(const ConvShape& shape, int threads);

/// A convolution of stride 1 over dy that gives the gradient of some pixels of x: `rows` [n, h, w, c] of
/// them.
struct BackwardPart {
  ConvShape over_dy;
  WeightView view;
  const float* dy = nullptr;
  float* rows = nullptr;
};

/// Calls visit for the phases that have taps, without data.
void for_backward_parts(const ConvShape& shape, const std::function<void(const BackwardPart&)>& visit);

/// The same phases as conv_grad_x_phases, each run by `run` in `bytes` of workspace. Weights are not ahead.
size_t conv_grad_x_parts_bytes(
    const ConvShape& shape, int threads,
    const std::function<size_t(const ConvShape&, const WeightView&, int threads)>& bytes);
void conv_grad_x_parts(const ConvGradXArgs& args, void* workspace, base::ThreadPool& pool,
                       const std::function<void(const BackwardPart&, void*, base::ThreadPool&)>& run);

/// The weights of all phases: each tap is in one of them, with channels padded to whole panels.
size_t packed_phases_bytes(const ConvShape& shape);

/// Packs ONNX weights of the convolution `shape` into `memory` with the team.
void pack_phases(const ConvShape& shape, const float* weights, void* memory, base::ThreadPool& pool);

/// Input pixels of one remainder modulo the strides read the same taps: each such phase is a product of
/// stride 1 over dy, computed for a few images at a time and interleaved into dx.
void conv_grad_x_phases(const ConvGradXArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
