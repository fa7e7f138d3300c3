// Which part of a training step each step of a program belongs to.
#pragma once

#include <vector>

#include "compile/program.h"

namespace trireme::lower {

enum class StepPhase : uint8_t { forward, backward, update };

/// Returns the phase of every step by what it depends on: a step that depends on the learning rate is part of
/// the update, another that depends on the weight of the loss is backward, all others are forward.
std::vector<StepPhase> phases_of(const compile::Program& program);

}  // namespace trireme::lower
