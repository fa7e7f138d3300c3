// Which part of a training step each step of a program belongs to.
#pragma once

#include <vector>

#include "compile/program.h"

namespace trireme::lower {

enum class StepPhase : uint8_t { forward, backward, update };

/// Phase of every step by what it depends on: the learning rate makes an update, else the weight of the loss
/// makes a backward step, else it is forward.
std::vector<StepPhase> phases_of(const compile::Program& program);

}  // namespace trireme::lower
