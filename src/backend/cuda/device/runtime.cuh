// The toolkit's runtime, for launch.h where the device compiler reads it.
#pragma once

#include <cuda_runtime.h>
