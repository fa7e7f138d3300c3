// The Winograd form of f32 3 x 3 convolutions in a few wide groups over channels-last activations.
#pragma once

#include <vector>

#include "backend/cpu/conv/winograd_nhwc.h"

namespace trireme::cpu {

/// True for two groups or more, each a convolution for the Winograd form.
bool winograd_groups_fits(const ConvShape& shape);

size_t packed_winograd_groups_bytes(const ConvShape& shape);

/// Transforms ONNX weights [oc, c / groups, 3, 3] into `memory`, on the calling thread; one entry a group.
std::vector<PackedWinograd> pack_winograd_groups(const ConvShape& shape, const float* weights, void* memory);

struct WinogradGroupsArgs {
  ConvShape shape;
  const float* x = nullptr;
  const PackedWinograd* weights = nullptr;  // [groups]
  float* y = nullptr;
  Epilogue epilogue;
};

size_t winograd_groups_workspace_bytes(const ConvShape& shape, int threads);

/// One group after another, each by the whole team, its channels read and written where they lie.
void winograd_groups_nhwc(const WinogradGroupsArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
