// Which collectives run aside of the computation, and what waits for them.
#pragma once

#include <vector>

#include "compile/program.h"

namespace trireme::compile {

/// The order of the nodes' steps: with `overlap` collectives stand where they may begin, the others as
/// sorted.
std::vector<size_t> step_order(const ir::Graph& sorted, bool overlap);

/// Decides for each collective whether it runs aside, and writes down for each step which of them it waits
/// for: for results it reads, and for operands whose memory it overwrites. A collective stays in line where
/// nothing could be computed meanwhile, unless one of the same ranks is under way: those keep one order.
void plan_lanes(Program& program);

}  // namespace trireme::compile
