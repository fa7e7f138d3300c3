// Fuzzes row files: any bytes are rows of a format, the same in spans of any size, or give a clear error in
// bounded work. The first byte chooses the format, the second the number of rows in a span.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/error.h"
#include "data/readers/fuzz_file.h"
#include "data/rows/row_file.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme;

constexpr std::array<const char*, 6> kFormats = {"jsonl", "openai", "csv", "tfrecord", "webdataset", "npy"};

template <class Body>
void must_be_clear(const Body& body) {
  try {
    body();
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
}

/// Hashes every value, so that a read outside its memory is detected; counts rows and errors.
struct Tally {
  int64_t rows = 0, failed = 0;
  uint64_t hash = 0;

  void add(const data::Rows& part) {
    for (int64_t row = 0; row < part.count; ++row) {
      failed += part.error_at(row) == nullptr ? 0 : 1;
      for (const data::Column& column : part.columns) add(column, row);
    }
    rows += part.count;
  }
  void add(const data::Column& column, int64_t row) {
    hash = hash * 31 + (column.is_missing_at(row) ? 1 : 0);
    if (column.field.kind == data::FieldKind::tensor) {
      hash = hash * 31 + tensor::content_hash(column.tensor_at(row));
    } else {
      for (const char c : column.strings.at(static_cast<size_t>(row)))
        hash = hash * 31 + static_cast<uint8_t>(c);
    }
  }
  bool operator==(const Tally&) const = default;
};

/// Returns nothing if the file cannot be cut, or reading it ends with an error.
std::optional<Tally> read(const data::RowFile& file, int64_t span_rows, int64_t piece) {
  std::optional<Tally> tally;
  must_be_clear([&] {
    Tally all;
    file.cut(span_rows, [&](const data::RowSpan& span) {
      if (span.rows < 1 || span.rows > 2 * span_rows) std::abort();
      const int64_t before = all.rows;
      const auto stream = file.open(span, {});
      for (data::Rows rows; stream->next(piece, rows);) {
        if (rows.count < 1 || rows.count > piece) std::abort();
        all.add(rows);
      }
      if (all.rows - before != span.rows) std::abort();
    });
    tally = all;
  });
  return tally;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const data::FuzzFile kFile("rows");
  if (size < 2) return 0;
  kFile.write({reinterpret_cast<const char*>(bytes) + 2, size - 2});
  // One byte of a PNG may encode 8256 pixels of three bytes; every row is read twice.
  const fuzz::BoundedWork bounded(size, {.fixed_s = 1,
                                         .s_per_byte = 400e-6,
                                         .fixed_peak_bytes = size_t{64} << 20,
                                         .peak_per_byte = 64 << 10,
                                         .total_per_byte = 256 << 10});
  data::RowFileOptions options{.format = kFormats[bytes[0] % kFormats.size()], .most_row_bytes = 1 << 20};
  options.csv_header = bytes[0] < 128;
  must_be_clear([&] {
    const auto file = data::open_row_file(data::store_of(kFile.path()), kFile.path(), options);
    const std::optional<Tally> whole = read(*file, int64_t{1} << 40, 1000);
    const std::optional<Tally> spans = read(*file, 1 + bytes[1] % 16, 3);
    if (whole != spans) std::abort();
  });
  return 0;
}
