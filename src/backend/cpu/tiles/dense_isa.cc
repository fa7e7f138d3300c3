// Finds the highest instruction-set level of this machine by asking the processor and the operating system.
#include "backend/cpu/tiles/dense_isa.h"

#include <array>

namespace trireme::cpu {
namespace {

constexpr std::array kAll = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_vnni};

Isa detect() {
#if defined(__x86_64__)
  // __builtin_cpu_supports also checks that the operating system saves the wide registers.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::portable;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!wide) return Isa::avx2;
  return __builtin_cpu_supports("avx512vnni") ? Isa::avx512_vnni : Isa::avx512;
#else
  return Isa::portable;
#endif
}

}  // namespace

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_vnni: return "avx512_vnni";
  }
  return "?";
}

Isa best_isa() {
  static const Isa isa = detect();
  return isa;
}

std::span<const Isa> usable_isas() { return std::span(kAll).first(static_cast<size_t>(best_isa()) + 1); }

}  // namespace trireme::cpu
