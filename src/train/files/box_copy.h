// Parts of tensors: copying boxes between row-major tensors, and where a rank's boxes lie in its local
// tensor.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tensor/shard.h"

namespace trireme::train {

/// A box in memory: a row-major tensor of shape `dims`, and where the box begins in it.
struct BoxPlace {
  tensor::Dims dims, offset;
};

/// Calls run(from_byte, to_byte, bytes) for every stretch of a box of shape `size` that is contiguous in both
/// tensors, in row-major order. Offsets count from the tensors' first bytes.
void for_runs(const tensor::Dims& size, const BoxPlace& from, const BoxPlace& to, int64_t element_bytes,
              const std::function<void(int64_t, int64_t, int64_t)>& run);

/// What two boxes of one tensor have in common; extents are 0 where they do not meet.
tensor::Box intersection(const tensor::Box& a, const tensor::Box& b);

/// Where each of tensor::local_boxes() begins in the local tensor: boxes lie side by side.
std::vector<tensor::Dims> local_offsets(const std::vector<tensor::Box>& boxes);

/// "[0:4, 8:16]".
std::string to_string(const tensor::Box& box);

}  // namespace trireme::train
