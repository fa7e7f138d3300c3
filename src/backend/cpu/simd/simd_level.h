// Which SIMD instruction sets this build carries, which one runs, and how a test forces another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::cpu {

/// One compiled instruction set, as the dispatcher names it ("AVX3", "AVX2", "EMU128").
struct SimdLevel {
  int64_t mask;  // bit of the level in the dispatcher
  std::string name;
};

/// Lists the compiled levels that this processor can run, best first.
std::vector<SimdLevel> simd_levels();

/// Chooses the level now unless that has happened. A function pointer taken from the dispatcher before that
/// asks the processor again at every call, which costs microseconds on virtual machines.
void simd_ready();

/// Makes every kernel run at `level` from now on; for tests and benchmarks, while no kernel runs.
void simd_force(const SimdLevel& level);

/// Undoes simd_force: the best level of this processor is used again.
void simd_unforce();

}  // namespace trireme::cpu
