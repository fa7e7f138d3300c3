// A file's bytes in turn: as they lie there, or unpacked. What is held of them does not grow with the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/store/store.h"

namespace trireme::data {

/// One thread. Places are those of the unpacked bytes.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  /// What comes next: `least` bytes or more, fewer only at the end. Valid until the next call.
  std::string_view peek(size_t least);
  /// Goes on past bytes, at most to the end.
  void skip(uint64_t bytes);
  /// Where the next byte stands.
  uint64_t at() const { return at_; }

 protected:
  ByteStream(uint64_t at, size_t block_bytes) : at_(at), block_bytes_(block_bytes) {}

  /// Writes the next bytes to `out`; 0: there are none.
  virtual size_t fill(char* out, size_t room) = 0;
  /// Passes over bytes without giving them: how many it could.
  virtual uint64_t pass(uint64_t) { return 0; }

 private:
  uint64_t at_;
  size_t block_bytes_;
  std::vector<char> buffer_;
  size_t head_ = 0, tail_ = 0;  // of what is buffered and not yet taken
  bool ended_ = false;
};

enum class Packing : uint8_t { none, gzip, zstd };

/// Told by the first bytes.
Packing packing_of(const StoreFile& file);

/// From byte `begin` on, of unpacked bytes if the file is packed: then all before it is unpacked too. Throws
/// invalid_argument for damage as it is met, unsupported for a packing this build does not read.
std::unique_ptr<ByteStream> open_bytes(std::shared_ptr<const StoreFile> file, Packing packing,
                                       uint64_t begin);

/// Hashes size, head, tail and samples between them: equal for equal bytes. Files up to a mebibyte are read
/// whole, and of larger ones the last `tail_bytes`.
uint64_t content_id_of(const StoreFile& file, int64_t tail_bytes = 0);

/// Bytes [offset, offset + size) of a file.
std::string read_range(const StoreFile& file, int64_t offset, int64_t size);

}  // namespace trireme::data
