// What a model's programs have to tell of what they took, or could not take, from earlier runs.
#pragma once

#include <string>

#include "engine/prepared_model.h"

namespace trireme::engine {

/// See runtime::take_notice().
std::string take_device_notice(const PreparedModel& model);

}  // namespace trireme::engine
