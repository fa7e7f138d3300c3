// How the tensors of one collective stand in the memory that ranks exchange: pieces of blocks, one block a
// rank.
#pragma once

#include <vector>

#include "base/threads/thread_pool.h"
#include "ops/collective/parts.h"

namespace trireme::ops {

/// Rows [first, last) of a part; `last` -1: to the end.
struct PieceRows {
  int64_t first = 0, last = -1;
};

/// A tensor [before, sections * section extent, after] whose middle dimension is cut over ranks, in bytes.
class PieceCut {
 public:
  PieceCut(const tensor::TensorType& whole, size_t dim, const Cut& cut);

  int64_t whole_bytes() const { return rows_ * section_bytes_; }
  int64_t part_bytes(size_t rank) const { return rows_ * size_[rank]; }
  /// Bytes of the largest part: what each rank's piece takes in a block.
  int64_t piece_bytes() const { return rows_ * largest_; }
  bool is_even() const { return is_even_; }
  /// The whole tensor is the ranks' parts one after another: nothing to pack.
  bool is_contiguous() const { return is_contiguous_; }

  /// The runs of bytes that a part consists of.
  int64_t rows() const { return rows_; }
  int64_t row_bytes(size_t rank) const { return size_[rank]; }
  int64_t largest_row_bytes() const { return largest_; }
  /// From one row of the whole tensor to the next, and where rank r's part begins in each.
  int64_t section_bytes() const { return section_bytes_; }
  int64_t begin_bytes(size_t rank) const { return begin_[rank]; }

  /// Copies rows of rank r's part between the whole tensor and `part`, where they stand one after another.
  void pack(const std::byte* whole, std::byte* part, size_t rank, base::ThreadPool& pool,
            PieceRows rows = {}) const;
  void unpack(const std::byte* part, std::byte* whole, size_t rank, base::ThreadPool& pool,
              PieceRows rows = {}) const;

 private:
  int64_t rows_, section_bytes_, largest_;
  std::vector<int64_t> begin_, size_;  ///< bytes in a row, by rank
  bool is_even_, is_contiguous_;
};

/// One tensor of a collective.
struct Piece {
  size_t operand = 0, result = 0;
  tensor::DType dtype = tensor::DType::f32;
  PieceCut cut;
  int64_t offset = 0;  ///< in a rank's block, where packed
};

/// What goes in one call: pieces packed in blocks, or one piece as it stands.
struct Parcel {
  std::vector<Piece> pieces;
  bool is_packed = false;
  int64_t block_bytes = 0;  ///< of one rank
  int64_t chunk_rows = 0;   ///< above 0: a lone piece goes in calls of so many rows, which caches hold
};

struct ParcelRules {
  bool mixed = false;   ///< pieces of any type share a parcel
  bool chunked = true;  ///< large lone pieces that are packed go in runs of rows
};
/// Pieces of one element type (any type where `mixed`) that are small or not contiguous share a parcel; each
/// other piece goes alone. The choice depends on shapes only, so all ranks make the same.
std::vector<Parcel> make_parcels(std::vector<Piece> pieces, ParcelRules rules, int ranks);

/// Memory for `ranks` blocks of the largest packed parcel.
int64_t workspace_bytes(const std::vector<Parcel>& parcels, int ranks);

}  // namespace trireme::ops
