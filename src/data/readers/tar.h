// Tar archives as a list of members: old, ustar, GNU and pax headers, read in one scan.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::data {

/// A regular file inside an archive.
struct TarMember {
  std::string name;
  uint64_t offset = 0;  ///< of its content in the archive
  uint64_t size = 0;
  uint64_t header = 0;  ///< where its headers begin
};

/// Lists the regular files in their order; directories, links and devices are left out. Touches the headers
/// only, so a mapped archive's contents stay on disk. An archive may end without its two zero blocks. Throws
/// invalid_argument with the offset for a wrong checksum, a number that is none, or a cut-off member.
std::vector<TarMember> list_tar(std::string_view archive);

/// The same, member by member, over an archive that is read at places that only grow.
class TarScan {
 public:
  /// `read(offset, size)` gives that part of the archive, shorter where the archive ends, valid until the
  /// next call. `archive_bytes`: the end that members must not pass; INT64_MAX where nobody knows it.
  using Read = std::function<std::string_view(uint64_t offset, size_t size)>;
  TarScan(Read read, uint64_t begin, uint64_t archive_bytes)
      : read_(std::move(read)), at_(begin), archive_bytes_(archive_bytes) {}

  /// False: no more. Throws as list_tar does.
  bool next(TarMember& member);
  /// Where the next header stands.
  uint64_t at() const { return at_; }

 private:
  /// What extended headers said about the next member.
  struct Extension {
    std::string name;
    bool has_size = false;
    uint64_t size = 0;
  };
  bool take_header(std::string_view header, TarMember& member);
  static void read_pax(std::string_view records, Extension& next);

  Read read_;
  uint64_t at_;
  uint64_t archive_bytes_;
  uint64_t begin_ = 0;  // of the present member's first header
  Extension next_;
};

}  // namespace trireme::data
