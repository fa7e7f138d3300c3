// One kept plan as a file: its key and its bytes, with a checksum. No part of a library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::cuda {

/// What a file holds at most; larger ones are neither written nor read.
inline constexpr size_t kMostPlanBytes = size_t{64} << 20;

/// "TRPLAN1\n", then, little-endian: u32 CRC-32C of all that follows it, u32 bytes of the key, u64 bytes of
/// the body; then the key and the body.
std::string plan_file(std::string_view key, std::string_view body);

/// `body` points into the file; `problem` says why there is none, empty where there is.
struct PlanFile {
  std::string_view body;
  std::string_view problem;
};
/// Any bytes. A whole file of another key is a problem too: two keys may have one name.
PlanFile read_plan_file(std::string_view file, std::string_view key);

/// 32 hexadecimal digits of a text of any length: names of files and parts of keys, not a protection.
std::string digest_of(std::string_view text);

}  // namespace trireme::cuda
