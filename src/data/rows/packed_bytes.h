// Unpacking as a stream.
#pragma once

#include <memory>

#include "data/rows/byte_stream.h"

namespace trireme::data {

/// Members of gzip one after another, padded with zeros or not.
std::unique_ptr<ByteStream> open_gzip(std::unique_ptr<ByteStream> packed, size_t block_bytes);

/// Throws unsupported in builds without Arrow, which has the codec.
std::unique_ptr<ByteStream> open_zstd(std::unique_ptr<ByteStream> packed, size_t block_bytes);

}  // namespace trireme::data
