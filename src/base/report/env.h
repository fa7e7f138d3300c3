// What long-lived objects are given at construction instead of reaching for globals.
#pragma once

#include "base/clock.h"
#include "base/report/log.h"

namespace trireme::base {

/// Passed by value (two references); its referents outlive every object that was given it.
struct Env {
  Log& log;
  Clock& clock;
};

}  // namespace trireme::base
