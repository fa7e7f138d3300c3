// Finds the highest instruction-set level of this machine by asking the processor and the operating system.
#include "backend/cpu/tiles/dense_isa.h"

#include <array>

#include "backend/cpu/tiles/amx_tiles.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace trireme::cpu {
namespace {

constexpr std::array kAll = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::amx};

#if defined(__x86_64__)
/// Conversions of f16 (F16C), by leaf 1 of cpuid: not all compilers know it by name.
bool has_halves() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
}

/// AMX with products of bytes, by leaf 7 of cpuid.
bool has_byte_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 24 & 1) != 0 && (d >> 25 & 1) != 0;
}
#endif

Isa detect() {
#if defined(__x86_64__)
  // __builtin_cpu_supports also checks that the operating system saves the wide registers.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_halves())
    return Isa::portable;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!wide) return Isa::avx2;
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::avx512;
  return has_byte_tiles() && request_tile_registers() ? Isa::amx : Isa::avx512_vnni;
#else
  return Isa::portable;
#endif
}

}  // namespace

bool request_tile_registers() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h: ARCH_REQ_XCOMP_PERM, XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_vnni: return "avx512_vnni";
    case Isa::amx: return "amx";
  }
  return "?";
}

Isa best_isa() {
  static const Isa isa = detect();
  return isa;
}

std::span<const Isa> usable_isas() { return std::span(kAll).first(static_cast<size_t>(best_isa()) + 1); }

}  // namespace trireme::cpu
