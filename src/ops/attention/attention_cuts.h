// What of attention ranks may split: the batch, whole heads, and queries where no position is hidden.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

ir::CutRule attention_cut(const ir::NodeView& node);
ir::CutRule attention_bsnd_cut(const ir::NodeView& node);
ir::CutRule attention_bsnd_grad_cut(const ir::NodeView& node);
ir::CutRule attention_qkv_cut(const ir::NodeView& node);
ir::CutRule attention_qkv_grad_cut(const ir::NodeView& node);
ir::CutRule paged_attention_cut(const ir::NodeView& node);
ir::CutRule kv_append_cut(const ir::NodeView& node);
ir::CutRule rotary_cut(const ir::NodeView& node);

void localise_attention(ir::LocalNode& node);
void localise_bsnd(ir::LocalNode& node);
void localise_qkv(ir::LocalNode& node);
void localise_rotary(ir::LocalNode& node);

}  // namespace trireme::ops
