// Pinned host memory through which inputs, results, constants and the operands of host steps reach a device.
#include "runtime/staging.h"

#include <algorithm>

namespace trireme::runtime {
namespace {

/// Calls copy(host, at, bytes) for the pieces of the parts within [begin, end) of the region; `at` is
/// relative to `begin`.
template <class Copy>
void for_parts(std::span<const StagedPart> parts, int64_t begin, int64_t end, Copy copy) {
  for (const StagedPart& p : parts) {
    const int64_t first = std::max(p.offset, begin), last = std::min(p.offset + p.bytes, end);
    if (first < last) copy(p.host + (first - p.offset), first - begin, static_cast<size_t>(last - first));
  }
}

}  // namespace

void Staging::reserve(int64_t region_bytes, int64_t host_bytes) {
  const int64_t wanted = std::min(region_bytes, kChunkBytes);
  if (wanted > chunk_bytes_) {
    for (std::shared_ptr<void>& c : chunks_) c = device_.allocate_host(wanted);
    chunk_bytes_ = wanted;
  }
  if (region_bytes > kChunkBytes && lanes_[0] == nullptr) {
    for (std::unique_ptr<tensor::Stream>& lane : lanes_) lane = device_.open_stream(pool_);
  }
  if (host_bytes > host_bytes_) {
    host_ = device_.allocate_host(host_bytes);
    host_bytes_ = host_bytes;
  }
}

void Staging::upload(std::byte* region, std::span<const StagedPart> parts, int64_t bytes,
                     tensor::Stream& stream, size_t turn) {
  const auto gather = [&](size_t i, int64_t begin, int64_t end) {
    for_parts(parts, begin, end, [&](const std::byte* host, int64_t at, size_t size) {
      std::memcpy(chunk(i) + at, host, size);
    });
  };
  if (bytes <= kChunkBytes) {
    if (bytes == 0) return;
    gather(turn, 0, bytes);
    return stream.upload(region, chunk(turn), bytes);
  }
  size_t i = 0;
  for (int64_t begin = 0; begin < bytes; begin += kChunkBytes, i = 1 - i) {
    const int64_t end = std::min(bytes, begin + kChunkBytes);
    lanes_[i]->synchronize();  // the chunk before the last one has left this memory
    gather(i, begin, end);
    lanes_[i]->upload(region + begin, chunk(i), end - begin);
  }
  for (const std::unique_ptr<tensor::Stream>& lane : lanes_) lane->synchronize();
}

void Staging::fetch(const std::byte* region, int64_t bytes, tensor::Stream& stream) {
  if (bytes > 0 && bytes <= kChunkBytes) stream.download(chunk(1), region, bytes);
}

void Staging::deliver(const std::byte* region, std::span<const StagedPart> parts, int64_t bytes) {
  const auto scatter = [&](size_t i, int64_t begin, int64_t end) {
    for_parts(parts, begin, end,
              [&](std::byte* host, int64_t at, size_t size) { std::memcpy(host, chunk(i) + at, size); });
  };
  if (bytes <= kChunkBytes) return scatter(1, 0, bytes);
  const auto order = [&](size_t i, int64_t begin) {
    if (begin < bytes) lanes_[i]->download(chunk(i), region + begin, std::min(kChunkBytes, bytes - begin));
  };
  order(0, 0);
  order(1, kChunkBytes);
  size_t i = 0;
  for (int64_t begin = 0; begin < bytes; begin += kChunkBytes, i = 1 - i) {
    lanes_[i]->synchronize();
    scatter(i, begin, std::min(bytes, begin + kChunkBytes));
    order(i, begin + 2 * kChunkBytes);
  }
}

}  // namespace trireme::runtime
