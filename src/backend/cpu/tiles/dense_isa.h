// The instruction-set levels the dense kernels exist for, and the choice among them at run time.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace trireme::cpu {

/// Ordered: each level also runs what the levels before it run. Packed weights belong to the level they were
/// packed for.
enum class Isa : uint8_t { portable, avx2, avx512, avx512_vnni, amx };

std::string_view to_string(Isa isa);

/// The highest level this machine runs; asked once, then constant.
Isa best_isa();

/// Every level this machine runs, lowest first; tests and benches walk it.
std::span<const Isa> usable_isas();

}  // namespace trireme::cpu
