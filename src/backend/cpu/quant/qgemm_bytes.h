// Internal: plain 8-bit products with 8-bit results, by tiles whose requantisation is as short as their sums.
#pragma once

#include "backend/cpu/quant/qgemm_s8.h"

namespace trireme::cpu {

/// True where the byte tiles run the product: 8-bit results, scales below one, activations read in place, no
/// zero points of weights, and a level that has the tiles.
bool fits_byte_tiles(const QuantGemmArgs& args);

/// Runs it. No workspace. The same bytes as the general driver.
void run_byte_tiles(const QuantGemmArgs& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
