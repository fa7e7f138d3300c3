// What batches cost in simulations of the policy, in milliseconds by their rows.
#pragma once

#include <cstdint>

namespace trireme::sched {

/// MiniLM with 32 tokens on two cores: 3.9 ms for one row, 56 ms for 32.
inline double encoder_ms(int64_t rows) { return 2.2 + 1.68 * static_cast<double>(rows); }
/// Batches do not reduce the cost.
inline double linear_ms(int64_t rows) { return 1.5 * static_cast<double>(rows); }
/// A device that is not fully used below 16 rows.
inline double flat_ms(int64_t rows) { return rows <= 16 ? 8 : 0.5 * static_cast<double>(rows); }

}  // namespace trireme::sched
