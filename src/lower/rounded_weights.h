// Weights of a bucket's program that lower_for_inference() only named.
#pragma once

#include "base/memory/shared_cache.h"
#include "compile/program.h"

namespace trireme::lower {

/// On the CPU lower_for_inference() leaves a bf16 weight that its products pack without memory
/// (tensor/rounded.h). Gives such weights the content that the steps of a compiled program read after all,
/// where it was told to use other kernels than the graph would. To be called before it runs.
void fill_read_weights(const compile::Program& program, base::SharedCache& packs);

}  // namespace trireme::lower
