// A traced run in the form that Perfetto and chrome://tracing read.
#pragma once

#include <string>

#include "runtime/executor.h"

namespace trireme::runtime {

/// One track for each stream that has spans; slices are named by layer and tell operator, kernel and cost. A
/// trace without spans (of the CPU's programs) is shown as its steps one after another, those of a lane on
/// theirs.
std::string to_perfetto(const compile::Program& program, const Trace& trace, int rank = 0);

}  // namespace trireme::runtime
