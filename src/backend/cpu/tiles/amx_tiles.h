// Internal: shapes of the tile registers of AMX, and the permission that Linux wants a process to ask for
// before it uses them.
#pragma once

#include <cstdint>

namespace trireme::cpu {

/// What _tile_loadconfig() reads: palette 1, eight tiles of at most 16 rows of 64 bytes.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int row_count, int bytes) {
    rows[tile] = static_cast<uint8_t>(row_count);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileShapes) == 64);

/// What was stored before is in memory for the tile instructions that follow: the intrinsics of GCC 12 do not
/// tell the compiler that they read memory, so it might drop or delay stores to a local variable.
static inline __attribute__((always_inline)) void tiles_see_stores() { __asm__ volatile("" ::: "memory"); }

/// Asks Linux for the tile registers (arch_prctl ARCH_REQ_XCOMP_PERM, Linux 5.16 and later): granted for all
/// threads of the process. False where the system does not know them or refuses.
bool request_tile_registers();

}  // namespace trireme::cpu
