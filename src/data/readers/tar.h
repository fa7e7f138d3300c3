// Tar archives as a list of members: old, ustar, GNU and pax headers, read in one scan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// A regular file inside an archive.
struct TarMember {
  std::string name;
  uint64_t offset = 0;  ///< of its content in the archive
  uint64_t size = 0;
};

/// Lists the regular files in their order; directories, links and devices are left out. Touches the headers
/// only, so a mapped archive's contents stay on disk. An archive may end without its two zero blocks. Throws
/// invalid_argument with the offset for a wrong checksum, a number that is none, or a cut-off member.
std::vector<TarMember> list_tar(std::string_view archive);

}  // namespace trireme::data
