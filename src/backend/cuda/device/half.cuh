// The toolkit's 16-bit floats, for scalar.h where the device compiler reads it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
