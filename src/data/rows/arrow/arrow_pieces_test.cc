// Small files whose values are large: texts that dictionaries and views repeat, rows and items without a
// byte.
#if TRIREME_ARROW
#include "data/rows/arrow/arrow_pieces.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/writer.h>
#include <arrow/util/compression.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include "data/rows/row_formats.h"
#include "data/rows/row_trial.h"

namespace trireme::data {
namespace {

using namespace trial;  // NOLINT: this file's own vocabulary
using ArrayPtr = std::shared_ptr<arrow::Array>;

ArrayPtr texts(const std::vector<std::string>& values) {
  arrow::StringBuilder builder;
  EXPECT_TRUE(builder.AppendValues(values).ok());
  return *builder.Finish();
}

/// `first`, `first + step`, …
ArrayPtr numbers(int64_t count, int32_t step, int32_t first = 0) {
  arrow::Int32Builder builder;
  for (int32_t i = 0; i < count; ++i) EXPECT_TRUE(builder.Append(first + i * step).ok());
  return *builder.Finish();
}

/// `rows` times one text.
ArrayPtr repeated_text(int64_t rows, size_t bytes) {
  return *arrow::DictionaryArray::FromArrays(numbers(rows, 0), texts({std::string(bytes, 'x')}));
}

std::shared_ptr<arrow::RecordBatch> batch_of(const std::vector<ArrayPtr>& columns) {
  arrow::FieldVector fields;
  for (size_t c = 0; c < columns.size(); ++c)
    fields.push_back(arrow::field(std::string(1, static_cast<char>('a' + c)), columns[c]->type()));
  return arrow::RecordBatch::Make(arrow::schema(fields), columns[0]->length(), columns);
}

ArrowPiece piece_of(const ArrayPtr& column, int64_t most_row_bytes = int64_t{64} << 20) {
  return first_piece(*batch_of({column}), column->length(), most_row_bytes);
}

constexpr size_t kMega = 1'000'000;
constexpr auto kPieceMegas = static_cast<int64_t>(kPieceBytes / kMega);

TEST(ArrowPieces, WhatIsRepeatedCounts) {
  const ArrayPtr repeated = repeated_text(1000, kMega);
  EXPECT_LE(piece_of(repeated).rows, kPieceMegas);
  EXPECT_GE(piece_of(repeated).rows, kPieceMegas / 4);
  EXPECT_EQ(piece_of(repeated_text(1000, 10)).rows, 1000);
  const ArrayPtr inside = *arrow::StructArray::Make({repeated}, std::vector<std::string>{"text"});
  EXPECT_LE(piece_of(inside).rows, kPieceMegas);
  const ArrayPtr list = *arrow::ListArray::FromArrays(*numbers(1001, 1), *repeated);
  EXPECT_LE(piece_of(list).rows, kPieceMegas);
  const ArrayPtr run =
      *arrow::RunEndEncodedArray::Make(1000, numbers(1, 0, 1000), texts({std::string(kMega, 'x')}));
  EXPECT_LE(piece_of(run).rows, kPieceMegas);
}

TEST(ArrowPieces, ALongRowIsAlone) {
  const ArrayPtr column = texts({"a", std::string(5000, 'b'), "c"});
  EXPECT_EQ(piece_of(column).rows, 3);
  const auto batch = batch_of({column});
  EXPECT_EQ(first_piece(*batch, 3, 1000).rows, 1);
  const ArrowPiece second = first_piece(*batch->Slice(1), 2, 1000);
  EXPECT_EQ(second.rows, 1);
  EXPECT_EQ(second.too_long, 5000);
  EXPECT_EQ(first_piece(*batch->Slice(2), 1, 1000).too_long, 0);
}

TEST(ArrowPieces, ItemsWithoutAByteCount) {
  constexpr int32_t kItems = 1 << 30;
  const ArrayPtr nulls = std::make_shared<arrow::NullArray>(kItems);
  const std::vector<int32_t> ends = {0, kItems};
  const auto list = std::make_shared<arrow::ListArray>(arrow::list(arrow::null()), 1,
                                                       arrow::Buffer::FromVector(ends), nulls);
  EXPECT_GT(piece_of(list).too_long, kItems);
}

std::string write_arrow(const TestDirectory& dir, const std::shared_ptr<arrow::RecordBatch>& batch) {
  std::string path = dir.path() + "/x.arrow";
  const auto to = *arrow::io::FileOutputStream::Open(path);
  arrow::ipc::IpcWriteOptions options;
  options.codec = std::shared_ptr(*arrow::util::Codec::Create(arrow::Compression::ZSTD));
  const auto writer = *arrow::ipc::MakeFileWriter(to, batch->schema(), options);
  EXPECT_TRUE(writer->WriteRecordBatch(*batch).ok() && writer->Close().ok() && to->Close().ok());
  return path;
}

std::string write_parquet(const TestDirectory& dir, const std::shared_ptr<arrow::RecordBatch>& batch) {
  std::string path = dir.path() + "/x.parquet";
  const auto to = *arrow::io::FileOutputStream::Open(path);
  const auto properties = parquet::WriterProperties::Builder().disable_statistics()->build();
  EXPECT_TRUE(parquet::arrow::WriteTable(**arrow::Table::FromRecordBatches({batch}),
                                         arrow::default_memory_pool(), to, batch->num_rows(), properties)
                  .ok());
  EXPECT_TRUE(to->Close().ok());
  return path;
}

/// Reads columns a, which counts the rows, and b, a text of `bytes` bytes in every row.
void expect_rows(const std::string& path, int64_t count, size_t bytes) {
  const auto file = open_rows(path);
  int64_t row = 0;
  for (const RowSpan& span : spans_of(*file, count)) {
    const auto stream = file->open(span, {});
    for (Rows part; stream->next(count, part);) {
      size_t held = 0;
      for (int64_t i = 0; i < part.count; ++i, ++row) {
        const std::string& text = part.columns[1].strings[static_cast<size_t>(i)];
        ASSERT_EQ(part.columns[0].numbers.data<int32_t>()[static_cast<size_t>(i)], row);
        ASSERT_EQ(text.size(), bytes);
        held += text.size();
      }
      ASSERT_LE(held, kPieceBytes);
    }
  }
  EXPECT_EQ(row, count);
}

TEST(ArrowPieces, AFileOfOneLongTextIsReadInPieces) {
  const TestDirectory dir;
  // 8,192 such rows, the batch that the sizes in the footer ask for, are more than the file's pool holds.
  constexpr int64_t kRows = 9000;
  const auto batch = batch_of({numbers(kRows, 1), repeated_text(kRows, 100'000)});
  expect_rows(write_parquet(dir, batch), kRows, 100'000);
  expect_rows(write_arrow(dir, batch), kRows, 100'000);
}

TEST(ArrowPieces, ALongRowOfAFileHasAnError) {
  const TestDirectory dir;
  const auto batch = batch_of({numbers(3, 1), texts({"a", std::string(5000, 'b'), "c"})});
  for (const std::string& path : {write_parquet(dir, batch), write_arrow(dir, batch)}) {
    Dice dice(1);
    const std::vector<std::string> lines = read_lines(*open_rows(path, {.most_row_bytes = 1000}), 3, dice, 3);
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(lines[0], "a=i32[] 0; b='a'; ");
    EXPECT_EQ(lines[1], "error: row 1: row of 5004 bytes is longer than the limit of 1000");
    EXPECT_EQ(lines[2], "a=i32[] 2; b='c'; ");
  }
}

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    return e.message();
  }
  return "none";
}

TEST(ArrowPieces, WhatAFileCannotPayForIsRefused) {
  const TestDirectory dir;
  const auto says = [](const std::string& refusal, const std::string& words) {
    EXPECT_NE(refusal.find(words), std::string::npos) << refusal;
  };
  const auto rows = batch_of({std::make_shared<arrow::NullArray>(INT32_MAX)});
  says(refusal_of([&] { spans_of(*open_rows(write_arrow(dir, rows)), 1000); }), "for each of its bytes");
  const auto wide = batch_of({*arrow::MakeArrayOfNull(arrow::fixed_size_list(arrow::int8(), 1 << 30), 0)});
  says(refusal_of([&] { open_rows(write_arrow(dir, wide)); }), "longer than the limit");
  // 640 MB, which a page of zstd states in some kilobytes.
  const auto zeros = *arrow::MakeArrayFromScalar(arrow::Int64Scalar(0), 80'000'000);
  const std::string large = write_arrow(dir, batch_of({zeros}));
  says(refusal_of([&] { spans_of(*open_rows(large), 1000); }), "more memory than may be spent");
}

}  // namespace
}  // namespace trireme::data
#endif
