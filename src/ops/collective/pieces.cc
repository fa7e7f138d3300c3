// The layout of a collective's tensors in the memory that ranks exchange: each rank has a block, and a block
// consists of pieces.
#include "ops/collective/pieces.h"

#include <algorithm>
#include <cstring>

namespace trireme::ops {
namespace {

// Pieces below this size are packed together: two copies cost less than another exchange.
constexpr int64_t kSmallBytes = int64_t{256} << 10;
constexpr int64_t kAlignment = 16;  // of pieces in a block, so that reductions read aligned elements
constexpr int64_t kGrainBytes = int64_t{64} << 10;
constexpr int64_t kChunkBytes = int64_t{1} << 20;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool wants_packing(const Piece& piece) {
  return !piece.cut.is_contiguous() || piece.cut.piece_bytes() < kSmallBytes;
}

}  // namespace

PieceCut::PieceCut(const tensor::TensorType& whole, size_t dim, const Cut& cut) {
  const tensor::Dims dims = whole.shape.to_dims();
  int64_t before = 1, after = tensor::bits_of(whole.dtype) / 8;
  for (size_t d = 0; d < dim; ++d) before *= dims[d];
  for (size_t d = dim + 1; d < dims.size(); ++d) after *= dims[d];
  rows_ = before * cut.sections;
  section_bytes_ = cut.extent / cut.sections * after;
  largest_ = cut.largest() * after;
  for (size_t r = 0; r < cut.size.size(); ++r) {
    begin_.push_back(cut.begin[r] * after);
    size_.push_back(cut.size[r] * after);
  }
  is_even_ = cut.is_even();
  is_contiguous_ = rows_ == 1 && cut.is_in_order();
}

void PieceCut::pack(const std::byte* whole, std::byte* part, size_t rank, base::ThreadPool& pool,
                    PieceRows rows) const {
  const int64_t size = size_[rank], count = (rows.last < 0 ? rows_ : rows.last) - rows.first;
  const std::byte* from = whole + rows.first * section_bytes_ + begin_[rank];
  pool.for_range(count, std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, size)),
                 [&](int64_t first, int64_t last) {
                   for (int64_t i = first; i < last; ++i)
                     std::memcpy(part + i * size, from + i * section_bytes_, static_cast<size_t>(size));
                 });
}

void PieceCut::unpack(const std::byte* part, std::byte* whole, size_t rank, base::ThreadPool& pool,
                      PieceRows rows) const {
  const int64_t size = size_[rank], count = (rows.last < 0 ? rows_ : rows.last) - rows.first;
  std::byte* to = whole + rows.first * section_bytes_ + begin_[rank];
  pool.for_range(count, std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, size)),
                 [&](int64_t first, int64_t last) {
                   for (int64_t i = first; i < last; ++i)
                     std::memcpy(to + i * section_bytes_, part + i * size, static_cast<size_t>(size));
                 });
}

std::vector<Parcel> make_parcels(std::vector<Piece> pieces, ParcelRules rules, int ranks) {
  std::vector<Parcel> packed, alone;
  for (Piece& piece : pieces) {
    if (!wants_packing(piece)) {
      alone.push_back({.pieces = {std::move(piece)}});
      continue;
    }
    const auto at = std::find_if(packed.begin(), packed.end(), [&](const Parcel& p) {
      return rules.mixed || p.pieces.front().dtype == piece.dtype;
    });
    Parcel& parcel = at == packed.end() ? packed.emplace_back() : *at;
    parcel.is_packed = true;
    piece.offset = parcel.block_bytes;
    parcel.block_bytes += aligned(piece.cut.piece_bytes());
    parcel.pieces.push_back(std::move(piece));
  }
  for (Parcel& parcel : packed) {
    // A single piece is packed only if it is not contiguous.
    if (parcel.pieces.size() > 1) continue;
    const PieceCut& cut = parcel.pieces[0].cut;
    parcel.is_packed = !cut.is_contiguous();
    const int64_t rows = kChunkBytes / std::max<int64_t>(1, ranks * cut.largest_row_bytes());
    if (!rules.chunked || !parcel.is_packed || rows >= cut.rows() || ranks == 1) continue;
    parcel.chunk_rows = std::max<int64_t>(1, rows);
    parcel.block_bytes = aligned(parcel.chunk_rows * cut.largest_row_bytes());
  }
  packed.insert(packed.end(), std::make_move_iterator(alone.begin()), std::make_move_iterator(alone.end()));
  return packed;
}

int64_t workspace_bytes(const std::vector<Parcel>& parcels, int ranks) {
  int64_t bytes = 0;
  for (const Parcel& p : parcels) {
    if (p.is_packed) bytes = std::max(bytes, p.block_bytes * ranks);
  }
  return bytes;
}

}  // namespace trireme::ops
