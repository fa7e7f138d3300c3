// Ranks hold their programs against each other before they run them: a collective that one of them lacks is
// an error with names, not a job that hangs.
#pragma once

#include "comm/mesh.h"
#include "compile/program.h"

namespace trireme::runtime {

/// Opens the groups of all collectives in program order and compares, group by group, what the ranks'
/// programs do there. Collective over each group. Throws invalid_argument on every rank of a group whose
/// members differ, with the place and what each of two ranks has there.
void open_same_collectives(const compile::Program& program, comm::Mesh& mesh);

}  // namespace trireme::runtime
