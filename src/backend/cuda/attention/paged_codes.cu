// Launchers of attention over pages in 8 bits, and of what writes them.
#include "backend/cuda/attention/paged_any_type.h"

namespace trireme::cuda {

void attend_codes(tensor::Stream& stream, const PagedAttentionArgs& a) {
  by_float(a.type, [&](auto zero) {
    with_width(a.dim, [&](auto width) { attend_any<decltype(zero), PageCode, width.value>(stream, a); });
  });
}

void append_codes(tensor::Stream& stream, const KvAppendArgs& a) {
  by_float(a.type, [&](auto zero) {
    using Kernel = AppendCodes<decltype(zero)>;
    const int64_t rows = 2 * a.tokens * a.kv_heads;
    launch(stream, "kv_append_codes",
           {blocks_for(cuda_stream(stream), (rows + Kernel::kWarps - 1) / Kernel::kWarps), Kernel::kThreads},
           Kernel{a});
  });
}

}  // namespace trireme::cuda
