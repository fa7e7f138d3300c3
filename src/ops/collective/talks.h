// Kernels of the collectives for any device: what moves bytes about in its memory is given.
#pragma once

#include "ir/kernel.h"
#include "ops/collective/pieces.h"

namespace trireme::ops {

/// How a device moves bytes, in the order of a stream. Lives for ever.
class Mover {
 public:
  virtual ~Mover() = default;
  /// Rows of rank `rank`'s part, between the whole tensor and memory where they stand one after another.
  struct Rows {
    std::byte *whole, *part;
    size_t rank;
    PieceRows rows;
  };
  virtual void copy(tensor::Stream& stream, std::byte* to, const std::byte* from, int64_t bytes) const = 0;
  virtual void zero(tensor::Stream& stream, std::byte* to, int64_t bytes) const = 0;
  virtual void pack(tensor::Stream& stream, const PieceCut& cut, const Rows& rows) const = 0;
  virtual void unpack(tensor::Stream& stream, const PieceCut& cut, const Rows& rows) const = 0;
  /// Whether pieces that are packed go in runs of rows that caches hold.
  virtual bool wants_chunks() const = 0;
};

ir::Kernel all_reduce_kernel(const Mover& mover);
ir::Kernel all_gather_kernel(const Mover& mover);
ir::Kernel reduce_scatter_kernel(const Mover& mover);
ir::Kernel all_to_all_kernel(const Mover& mover);
ir::Kernel shard_slice_kernel(const Mover& mover);
ir::Kernel gather_into_kernel(const Mover& mover);

}  // namespace trireme::ops
