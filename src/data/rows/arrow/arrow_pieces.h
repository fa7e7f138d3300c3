// How many rows of a record batch are made at once, by the bytes that their values have when decoded. Arrow's
// own headers stay in sources: its types are only named here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset/dataset.h"

namespace arrow {
class MemoryPool;
class RecordBatch;
}  // namespace arrow

namespace trireme::data {

/// The first rows of a batch.
struct ArrowPiece {
  int64_t rows = 0;
  int64_t too_long = 0;  ///< the bytes of a row above the limit, which is alone then; else 0
};

/// At most `most` rows, one at least, whose values take at most kPieceBytes: a dictionary, a view and a run
/// of equal values repeat a text for a few bits, so what a batch itself takes says nothing. A longer row is
/// alone.
ArrowPiece first_piece(const arrow::RecordBatch& batch, int64_t most, int64_t most_row_bytes);

/// The memory of one file's readers, all of them together. A page and a record batch state the size that they
/// are unpacked to and are needed whole, so the file's own bytes must pay for it: 512 MiB, and 4 times the
/// bytes of the file, `most` at most.
std::shared_ptr<arrow::MemoryPool> pool_of_file(int64_t file_bytes, int64_t most);

/// Throws invalid_argument if rows of one shape are longer than the limit.
void check_widths(const std::vector<Field>& fields, int64_t most_row_bytes);

}  // namespace trireme::data
