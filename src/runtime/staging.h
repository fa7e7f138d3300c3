// Pinned host memory through which inputs, results, constants and the operands of host steps reach a device.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "tensor/device.h"

namespace trireme::runtime {

/// Memory of the caller and its place in a region of device memory.
struct StagedPart {
  std::byte* host = nullptr;
  int64_t offset = 0, bytes = 0;
};

/// Of one session, whose programs run one at a time. No allocation once reserve() has seen the sizes.
class Staging {
 public:
  /// The pool is for streams that copy; both outlive it.
  Staging(tensor::Device& device, base::ThreadPool& pool) : device_(device), pool_(pool) {}

  /// Makes room for regions of `region_bytes` and host steps of `host_bytes`. Not while anything is under
  /// way.
  void reserve(int64_t region_bytes, int64_t host_bytes);

  /// Sends the parts to `region` before what follows on `stream`. A region above a chunk goes in chunks: one
  /// is gathered into pinned memory while the one before it is transferred. The parts may change afterwards.
  /// A call waits for nothing, so `stream` is synchronized between it and the next, or the next but one where
  /// `turn` tells two in succession apart: then regions fit a chunk and nothing is fetched.
  void upload(std::byte* region, std::span<const StagedPart> parts, int64_t bytes, tensor::Stream& stream,
              size_t turn = 0);
  /// True for regions that go in one chunk.
  static bool fits_chunk(int64_t bytes) { return bytes <= kChunkBytes; }
  /// Orders the way back of a region that fits a chunk behind what was launched on `stream`.
  void fetch(const std::byte* region, int64_t bytes, tensor::Stream& stream);
  /// After stream.synchronize(): hands the region's content out, large ones in chunks as upload() does.
  void deliver(const std::byte* region, std::span<const StagedPart> parts, int64_t bytes);

  /// Memory of host steps: their operands, results and workspaces.
  std::byte* host() { return static_cast<std::byte*>(host_.get()); }

 private:
  static constexpr int64_t kChunkBytes = int64_t{4} << 20;
  std::byte* chunk(size_t i) { return static_cast<std::byte*>(chunks_[i].get()); }

  tensor::Device& device_;
  base::ThreadPool& pool_;
  std::array<std::shared_ptr<void>, 2> chunks_;
  std::array<std::unique_ptr<tensor::Stream>, 2> lanes_;  ///< of chunks, where regions are larger than one
  int64_t chunk_bytes_ = 0;
  std::shared_ptr<void> host_;
  int64_t host_bytes_ = 0;
};

}  // namespace trireme::runtime
