// Internal: the first layer of an image network, read straight from planes [n, c, h, w] without a layout
// change.
#pragma once

#include "backend/cpu/conv/conv_nhwc.h"
#include "backend/cpu/tiles/dense_kernels.h"

namespace trireme::cpu {

/// True if the convolution is of the form that the plane kernels take; its weights are then packed in (c, kh,
/// kw) order.
bool conv_reads_planes(const ConvShape& shape, ImageLayout layout);

size_t conv_planes_workspace_bytes(const ConvShape& shape, int threads);

/// Neighbouring output pixels of a line are `stride_w` floats apart in each plane, so one pointer per (c, kh)
/// serves a whole tile and every broadcast has a constant offset.
void conv2d_planes(const ConvArgs& args, void* workspace, base::ThreadPool& pool);

/// True for kernels whose rows of taps are runs of a plane line long enough to be operands where they lie:
/// large patches. Weights are packed in (c, kh, kw) order too.
bool conv_reads_plane_runs(const ConvShape& shape, ImageLayout layout);

/// The planes with their padding, if they have any, and what the product needs.
size_t conv_plane_runs_workspace_bytes(const ConvShape& shape, int threads);

/// An implicit product over runs of kw floats, one for each channel and kernel row; no change of layout.
void conv2d_plane_runs(const ConvArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
