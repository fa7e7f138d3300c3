// Overlap of collectives with computation: which run on the communication lane, and which steps wait for
// them.
#pragma once

#include <vector>

#include "compile/program.h"

namespace trireme::compile {

/// Returns the order in which the nodes become steps. With `overlap` a collective stands at the first place
/// where it can start; all other nodes keep their order.
std::vector<size_t> step_order(const ir::Graph& sorted, bool overlap);

/// Decides for each collective whether it runs on the communication lane, and records for each step which
/// collective it waits for: one whose result it reads, or one that reads memory which the step overwrites. A
/// collective stays among the other steps where nothing can be computed meanwhile, unless a collective of the
/// same ranks is on the lane: all ranks must run these in one order.
void plan_lanes(Program& program);

}  // namespace trireme::compile
