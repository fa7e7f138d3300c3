// What `trireme serve` can be told about the texts of language models, beside their cache.
#pragma once

#include "engine/decode/cache_options.h"
#include "engine/decode/speculation_options.h"
#include "sched/text/step_budget.h"

namespace trireme::serve {

struct TextOptions {
  engine::SpeculationOptions speculation;
  sched::TextGoals goals;

  void fields(base::OptionList& f) {
    speculation.fields(f);
    goals.fields(f);
  }
};

}  // namespace trireme::serve
