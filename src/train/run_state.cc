// Converts the counts of a run to and from JSON.
#include "train/run_state.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace trireme::train {
namespace {

using Count = int64_t RunState::*;
constexpr std::array<std::pair<const char*, Count>, 8> kCounts{{{"step", &RunState::step},
                                                                {"executed", &RunState::executed},
                                                                {"samples", &RunState::samples},
                                                                {"scheduled", &RunState::scheduled},
                                                                {"targets", &RunState::targets},
                                                                {"epoch", &RunState::epoch},
                                                                {"consumed", &RunState::consumed},
                                                                {"skips_in_row", &RunState::skips_in_row}}};

}  // namespace

base::Json RunState::to_json() const {
  base::Json json = base::Json::object();
  for (const auto& [name, count] : kCounts) json.set(name, this->*count);
  return json;
}

RunState RunState::from_json(const base::Json& json) {
  RunState state;
  for (const auto& [name, count] : kCounts) {
    state.*count = json.at(name).as_int();
    base::require(state.*count >= 0, "checkpoint: '", name, "' is negative");
  }
  return state;
}

}  // namespace trireme::train
