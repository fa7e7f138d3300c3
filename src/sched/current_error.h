// Whatever is being thrown, as the one error type: for threads that answer for others and go on.
#pragma once

#include "base/error.h"

namespace trireme::sched {

/// The exception in hand; call it inside a catch block. Memory that is not there is `exhausted`, also when
/// what is in hand is something else but there is none to say it; what is not ours is `internal`.
base::Error current_error() noexcept;

}  // namespace trireme::sched
