// Launcher of transposes, for layouts that cuDNN does not take.
#pragma once

#include <cstdint>

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// y [batch, columns, rows] = x [batch, rows, columns] transposed.
void transpose(On on, const void* x, void* y, const int64_t (&extents)[3]);

}  // namespace trireme::cuda
