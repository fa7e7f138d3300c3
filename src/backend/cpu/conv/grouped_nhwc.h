// f32 convolutions of many small groups over channels-last activations, epilogue fused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/conv/conv_nhwc.h"

namespace trireme::cpu {

/// Weights in the order that the kernel reads them, for vectors of `lanes` floats.
struct PackedGrouped {
  const float* data = nullptr;
  int lanes = 0;
};

/// True for two groups or more, none of them empty, whose outputs fill at least an eighth of the lanes of
/// their vectors and whose windows do not reach far beyond the image.
bool grouped_fits(const ConvShape& shape);

/// At most eight times the bytes of the weights where grouped_fits; less than twice for groups that have as
/// many outputs as inputs or more.
size_t packed_grouped_bytes(const ConvShape& shape);

/// Packs ONNX weights [oc, c / groups, kh, kw] into `memory` for the level that runs.
PackedGrouped pack_grouped(const ConvShape& shape, const float* weights, void* memory);

struct GroupedArgs {
  ConvShape shape;
  const float* x = nullptr;
  PackedGrouped weights;
  float* y = nullptr;
  Epilogue epilogue;
};

/// A few padded lines of the channels that one vector of outputs reads, for each member of the team.
size_t grouped_workspace_bytes(const ConvShape& shape, int threads);

/// A vector of outputs holds whole groups, as many as fit; input channel i of each of them is brought to its
/// lanes by one permutation, which serves the taps of a kernel row. Groups of more outputs than half a vector
/// take vectors of their own and broadcasts. Kernel rows outside the image are skipped, columns outside it
/// are multiplied as zeros; each output is one multiply-add chain in (kernel row, tap group, channel, tap)
/// order whatever the tiling or the team.
void grouped_nhwc(const GroupedArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
