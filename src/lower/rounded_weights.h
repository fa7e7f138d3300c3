// bf16 weights that lower_inference() left without content, for programs that read them after all.
#pragma once

#include "base/memory/shared_cache.h"
#include "compile/program.h"

namespace trireme::lower {

/// On the CPU a bf16 weight whose kernels pack it gets no memory of its own when a program is lowered
/// (tensor/rounded.h). If the program was compiled with other kernels (CompileOptions::only_kernel), some
/// steps read the weight itself; this fills those in. To be called before the program runs.
void fill_read_weights(const compile::Program& program, base::SharedCache& packs);

}  // namespace trireme::lower
