// Ops that only move elements along steps: how each plans its copies.
#pragma once

#include "ops/shape/strided_copy.h"

namespace trireme::ops {

std::vector<CopyJob> plan_transpose(const ir::NodeView& node);
std::vector<CopyJob> plan_expand(const ir::NodeView& node);
std::vector<CopyJob> plan_tile(const ir::NodeView& node);
std::vector<CopyJob> plan_concat(const ir::NodeView& node);
std::vector<CopyJob> plan_split(const ir::NodeView& node);
std::vector<CopyJob> plan_slice(const ir::NodeView& node);
std::vector<CopyJob> plan_depth_to_space(const ir::NodeView& node);
std::vector<CopyJob> plan_space_to_depth(const ir::NodeView& node);

}  // namespace trireme::ops
