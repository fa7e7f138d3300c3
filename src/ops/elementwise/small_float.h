// The 8- and 4-bit float formats by the names that operators know them by.
#pragma once

#include "tensor/small_float_math.h"

namespace trireme::ops {

using tensor::decode_small_float;
using tensor::encode_small_float;
using tensor::ScaleRounding;

}  // namespace trireme::ops
