// Assigns each step of a program to a phase of the training step.
#include "lower/step_phases.h"

#include <algorithm>

#include "passes/train/train.h"

namespace trireme::lower {

std::vector<StepPhase> phases_of(const compile::Program& program) {
  std::vector<StepPhase> of_slot(program.slots.size(), StepPhase::forward);
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const std::string& name = program.input_names[i];
    StepPhase& phase = of_slot[compile::index(program.inputs[i])];
    if (name == passes::kLossWeightInput) phase = StepPhase::backward;
    if (name == passes::kLrInput || name == passes::kGradScaleInput) phase = StepPhase::update;
  }
  std::vector<StepPhase> phases;
  for (const compile::Step& step : program.steps) {
    StepPhase phase = StepPhase::forward;
    for (compile::SlotId id : step.in) {
      if (id == compile::kNoSlot) continue;
      // A view has the phase of the value that it shows.
      phase = std::max({phase, of_slot[compile::index(id)], of_slot[compile::index(program.slot(id).root)]});
    }
    for (compile::SlotId id : step.out) {
      const bool is_new = id != compile::kNoSlot && program.root(id).kind != compile::SlotKind::state;
      if (is_new) of_slot[compile::index(id)] = phase;
    }
    phases.push_back(phase);
  }
  return phases;
}

}  // namespace trireme::lower
