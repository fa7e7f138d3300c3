// What a rank asks of its group in a collective, so that all can see whether they ask for the same.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/communicator.h"

namespace trireme::comm {

/// A call without its buffers.
struct Asked {
  Collective what = Collective::barrier;
  Reduction reduction;
  bool in_place = false;
  bool uneven = false;  // blocks of any size: bytes differ among ranks
  int root = -1;
  int64_t sequence = 0;
  size_t in_bytes = 0, out_bytes = 0;
  std::string_view source;
};

Asked asked(const Call& call, int64_t sequence);

/// The same as it travels between processes.
struct AskedLetter {
  Asked asked;  // its view means nothing on another rank: `source` does
  int color = 0, key = 0;
  std::array<char, Flight::kSourceLength> source{};

  void write(const Asked& question);
  Asked read() const;
};

/// Whether two ranks ask for one collective.
bool same(const Asked& a, const Asked& b);

/// "ranks disagree on a collective: rank 0 asks for …; rank 2 for …". Ranks are those of the world.
std::string disagreement(int rank_a, const Asked& a, int rank_b, const Asked& b);

/// "send and recv differ: rank 0 sends 8 bytes for layer 'a', rank 1 expects 12 for layer 'b'".
struct HalfExchange {
  int rank;
  size_t bytes;
  std::string_view source;
};
std::string disagreement(const HalfExchange& sender, const HalfExchange& receiver);

/// One rank's sizes in an all_to_all of uneven blocks.
struct SizesOf {
  int rank;  // of the world
  std::span<const int64_t> in, out;
  std::string_view source;
};
/// The first block whose two ranks name different sizes, in words; empty if there is none. Index in the list
/// = rank in the group.
std::string disagreement(std::span<const SizesOf> ranks);

/// Where block `which` begins.
size_t block_begin(std::span<const int64_t> sizes, int which);

}  // namespace trireme::comm
