// What launchers of attention over pages share.
#pragma once

#include "backend/cuda/attention/paged_view.h"

namespace trireme::cuda {

PagedView view_of(const PagedAttentionArgs& args);
/// Counters in the workspace, zero before attend_prepared().
int32_t* tickets_of(const PagedAttentionArgs& args);
int64_t ticket_count(const PagedAttentionArgs& args);
/// Throws internal for heads and types without kernels.
void require_paged(const PagedAttentionArgs& args);
/// attend_prepared() and kv_append() over pages of codes.
void attend_codes(tensor::Stream& stream, const PagedAttentionArgs& args);
void append_codes(tensor::Stream& stream, const KvAppendArgs& args);
/// Attention behind a launch that did what PreparePaged does.
void attend_prepared(tensor::Stream& stream, const PagedAttentionArgs& args);

}  // namespace trireme::cuda
