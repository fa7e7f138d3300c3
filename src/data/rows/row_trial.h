// Tables of random values, and reading and writing them in random pieces: for tests of files of rows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "data/readers/test_files.h"
#include "data/rows/row_file.h"
#include "data/rows/row_writer.h"
#include "data/rows/rows_builder.h"

namespace trireme::data::trial {

using tensor::DType;
using tensor::Tensor;
/// False in builds without Arrow, which say so by name.
inline bool has_arrow() {
  const TestDirectory dir;
  const auto file = store_of(dir.path())->create(dir.path() + "/x");
  try {
    make_row_writer(*file, {{"n"}}, {.format = "arrow"});
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::unsupported) return false;
    throw;
  }
  return true;
}

struct Dice {
  std::mt19937_64 engine;
  explicit Dice(uint64_t seed) : engine(seed) {}
  int64_t below(int64_t end) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(end)); }
  bool one_in(int64_t n) { return below(n) == 0; }
};

/// Texts with quotes, delimiters, line breaks, letters of several bytes, and nothing.
inline std::string random_text(Dice& dice) {
  static const std::vector<std::string> kParts = {"a",
                                                  "word",
                                                  " ",
                                                  ",",
                                                  "\"",
                                                  "\n",
                                                  "\r\n",
                                                  "ä",
                                                  "\xf0\x9f\x9a\xa3",
                                                  "\\",
                                                  "{",
                                                  "]",
                                                  "'",
                                                  "\t",
                                                  "0",
                                                  "the quick brown fox"};
  std::string text = "t";  // a text that looks like a number would be one in CSV
  for (int64_t n = dice.below(12); n > 0; --n)
    text += kParts[static_cast<size_t>(dice.below(static_cast<int64_t>(kParts.size())))];
  return text;
}

inline Tensor random_tensor(Dice& dice, DType dtype, const tensor::Dims& dims) {
  Tensor t = Tensor::empty(dtype, dims);
  for (int64_t i = 0; i < t.elements(); ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t number = dice.below(2000) - 1000;
    if (dtype == DType::f32) t.mutable_data<float>()[at] = static_cast<float>(number) / 7;
    if (dtype == DType::f64) t.mutable_data<double>()[at] = static_cast<double>(number) / 7;
    if (dtype == DType::f16)
      t.mutable_data<tensor::Half>()[at] = tensor::Half(static_cast<float>(number) / 8);
    if (dtype == DType::i64) t.mutable_data<int64_t>()[at] = number * (int64_t{1} << 40);
    if (dtype == DType::i32) t.mutable_data<int32_t>()[at] = static_cast<int32_t>(number);
    if (dtype == DType::u8) t.mutable_data<uint8_t>()[at] = static_cast<uint8_t>(number);
    if (dtype == DType::boolean) t.mutable_data<bool>()[at] = number % 2 == 0;
  }
  return t;
}

/// One value in `missing_in` is missing; 0: none is.
inline Rows random_rows(Dice& dice, const std::vector<Field>& fields, int64_t count, int64_t missing_in) {
  RowsBuilder rows(fields);
  for (int64_t row = 0; row < count; ++row) {
    for (size_t c = 0; c < fields.size(); ++c) {
      if (missing_in > 0 && row > 0 && dice.one_in(missing_in)) continue;
      if (fields[c].kind != FieldKind::tensor) {
        rows.column(c).add(fields[c].kind == FieldKind::text ? random_text(dice)
                                                             : random_text(dice) + '\0' + '\xff');
        continue;
      }
      tensor::Dims dims;
      // Of an empty list of lists nothing tells how long they would be.
      const int64_t least = fields[c].shape.rank() > 1 ? 1 : 0;
      for (const tensor::Dim& dim : fields[c].shape.dims())
        dims.push_back(dim.is_static() ? dim.value() : least + dice.below(4));
      rows.column(c).add(random_tensor(dice, fields[c].dtype, dims));
    }
    rows.end_row();
  }
  return rows.finish();
}

/// Zero, or nothing at all: what stands in the place of a missing value.
inline bool is_empty_at(const Column& column, int64_t row) {
  if (column.field.kind != FieldKind::tensor) return column.strings.at(static_cast<size_t>(row)).empty();
  const std::vector<double> values = column.tensor_at(row).to_doubles();
  return std::all_of(values.begin(), values.end(), [](double v) { return v == 0; });
}

inline std::string describe(const Rows& rows, int64_t row) {
  std::string text;
  if (const base::Error* error = rows.error_at(row)) return "error: " + error->message();
  for (const Column& column : rows.columns) {
    text += column.field.name + "=";
    if (column.is_missing_at(row)) {
      text += is_empty_at(column, row) ? "missing" : "missing, and yet there";
    } else if (column.field.kind == FieldKind::tensor) {
      const Tensor t = column.tensor_at(row);
      text += std::string(tensor::name_of(t.dtype())) + tensor::to_string(t.dims());
      if (t.elements() <= 64) {
        for (const double v : t.to_doubles()) text += base::concat(" ", v);
      } else {
        text += base::concat(" #", tensor::content_hash(t));
      }
    } else {
      text += "'" + column.strings.at(static_cast<size_t>(row)) + "'";
    }
    text += "; ";
  }
  return text;
}

inline std::vector<std::string> describe(const Rows& rows) {
  std::vector<std::string> lines;
  for (int64_t row = 0; row < rows.count; ++row) lines.push_back(describe(rows, row));
  return lines;
}

/// Rows of one span in pieces of up to `most` rows.
inline Rows read_span(const RowFile& file, const RowSpan& span, Dice& dice, int64_t most,
                      const std::vector<std::string>& columns = {}) {
  const std::unique_ptr<RowStream> stream = file.open(span, columns);
  std::vector<Rows> parts;
  for (;;) {
    const int64_t asked = 1 + dice.below(most);
    Rows part;
    if (!stream->next(asked, part)) return join(std::move(parts));
    EXPECT_TRUE(part.count > 0 && part.count <= asked) << part.count;
    parts.push_back(std::move(part));
  }
}

inline std::vector<RowSpan> spans_of(const RowFile& file, int64_t rows) {
  std::vector<RowSpan> spans;
  file.cut(rows, [&](const RowSpan& span) { spans.push_back(span); });
  return spans;
}

/// All rows as lines; spans are read in a random order.
inline std::vector<std::string> read_lines(const RowFile& file, int64_t span_rows, Dice& dice, int64_t most) {
  const std::vector<RowSpan> spans = spans_of(file, span_rows);
  std::vector<size_t> order;
  while (order.size() < spans.size()) order.push_back(order.size());
  if (dice.one_in(2)) std::shuffle(order.begin(), order.end(), dice.engine);
  std::vector<std::vector<std::string>> parts(spans.size());
  int64_t next = 0;
  for (const RowSpan& span : spans) {
    EXPECT_EQ(span.first_row, next);
    EXPECT_TRUE(span.rows > 0 && span.rows <= 2 * span_rows) << span.rows;
    next += span.rows;
  }
  for (const size_t i : order) parts[i] = describe(read_span(file, spans[i], dice, most));
  std::vector<std::string> lines;
  for (const auto& part : parts) lines.insert(lines.end(), part.begin(), part.end());
  return lines;
}

/// Writes rows in random pieces.
inline void write_rows(const std::string& path, const Rows& rows, const std::vector<Field>& fields,
                       const RowWriterOptions& options, Dice& dice, int64_t most) {
  const std::unique_ptr<StoreWriter> file = store_of(path)->create(path);
  const std::unique_ptr<RowWriter> writer = make_row_writer(*file, fields, options);
  for (int64_t at = 0; at < rows.count;) {
    const int64_t count = std::min(1 + dice.below(most), rows.count - at);
    writer->write(slice(rows, at, count));
    at += count;
  }
  writer->finish();
  file->commit();
}

inline std::unique_ptr<RowFile> open_rows(const std::string& path, const RowFileOptions& options = {}) {
  return open_row_file(store_of(path), path, options);
}

}  // namespace trireme::data::trial
