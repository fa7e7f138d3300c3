// The footer of a Parquet file without its row groups, and with some of them: what a reader of a few groups
// needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Decoded, the metadata of a row group takes some eight times the bytes that it has in the file, and a file
/// may have any number of groups: so a footer is kept as it is, and only what describes the groups in hand is
/// decoded. Immutable.
class ParquetFooter {
 public:
  struct Group {
    uint32_t begin = 0, bytes = 0;  ///< of its metadata in the footer
    int64_t rows = 0;
  };

  /// `bytes`: FileMetaData in Thrift's compact protocol, as parquet.thrift has it; what stands behind it (a
  /// signature) is left out. Looks at no more than the places and the rows of groups: reads the bytes once.
  /// Throws invalid_argument for bytes that are none.
  explicit ParquetFooter(std::string bytes);

  const std::vector<Group>& groups() const { return groups_; }
  /// Bytes of the metadata.
  size_t size() const { return bytes_.size(); }
  /// The metadata of a file whose row groups are [first, last) of this one's. Its num_rows is this one's.
  std::string with_groups(size_t first, size_t last) const;

 private:
  std::string bytes_;
  size_t list_begin_ = 0, list_end_ = 0;  ///< of the list of row groups: its head and all of them
  std::vector<Group> groups_;
};

}  // namespace trireme::data
