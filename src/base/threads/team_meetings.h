// How often the calling thread met a team.
#pragma once

#include <cstdint>

namespace trireme::base {

/// How many loops of the calling thread a team has shared so far, whatever team: each ended with a wait for
/// its slowest member. Loops that the caller ran alone do not count.
int64_t team_meetings();

}  // namespace trireme::base
