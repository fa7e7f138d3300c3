// Tests all formats of row files that can be written: what is read equals what was written, in spans and
// pieces of any size.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/machine/memory.h"
#include "data/rows/row_trial.h"

namespace trireme::data {
namespace {

using namespace trial;  // NOLINT: this file's own vocabulary

const Field kText = {"text", FieldKind::text};
const Field kInteger = {"n", FieldKind::tensor, DType::i64};
const Field kReal = {"x", FieldKind::tensor, DType::f32};
const Field kWideReal = {"x", FieldKind::tensor, DType::f64};  // as text is read
const Field kFlag = {"flag", FieldKind::tensor, DType::boolean};
const Field kVector = {"v", FieldKind::tensor, DType::f32, {3}};
const Field kWideVector = {"v", FieldKind::tensor, DType::f64, {3}};
const Field kIds = {"ids", FieldKind::tensor, DType::i64, {tensor::Dim::unknown()}};
const Field kMatrix = {"m", FieldKind::tensor, DType::f64, {2, 3}};
const Field kImage = {
    "image", FieldKind::tensor, DType::u8, {tensor::Dim::unknown(), tensor::Dim::unknown(), 3}};
const Field kHalf = {"h", FieldKind::tensor, DType::f16, {2}};
const Field kRaw = {"raw", FieldKind::bytes};

struct Case {
  RowWriterOptions options;
  std::vector<Field> fields;
  int64_t missing_in = 0;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* packing : {"", "gzip"}) {
    all.push_back({{.format = "jsonl", .compression = packing},
                   {kText, kInteger, kWideReal, kFlag, kWideVector, kIds},
                   7});
    all.push_back({{.format = "csv", .compression = packing}, {kText, kInteger, kWideReal}, 0});
  }
  all.push_back({{.format = "npy"}, {{"array", FieldKind::tensor, DType::f32, {3}}}, 0});
  all.push_back({{.format = "npy"}, {{"array", FieldKind::tensor, DType::boolean}}, 0});
  if (!has_arrow()) return all;
  const std::vector<Field> every = {kText, kInteger, kReal,  kFlag, kVector,
                                    kIds,  kMatrix,  kImage, kHalf, kRaw};
  for (const char* packing : {"", "zstd", "snappy"})
    all.push_back({{.format = "parquet", .compression = packing}, every, 7});
  for (const char* packing : {"", "zstd", "lz4"})
    all.push_back({{.format = "arrow", .compression = packing}, every, 7});
  return all;
}

std::string name_of(const Case& c) {
  return c.options.format + (c.options.compression.empty() ? "" : "_" + c.options.compression) + "_" +
         c.fields[0].name;
}

TEST(RowFormats, WhatIsWrittenIsReadInSpansAndPieces) {
  const TestDirectory dir;
  Dice dice(1);
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    for (const int64_t count : {0, 1, 7, 500}) {
      const Rows rows = random_rows(dice, c.fields, count, c.missing_in);
      const std::string path = dir.path() + "/x" + file_ending(c.options);
      write_rows(path, rows, c.fields, c.options, dice, 200);
      if (count == 0 && c.options.format == "jsonl") continue;  // it has no line that tells the columns
      const auto file = open_rows(path);
      EXPECT_EQ(file->format(), c.options.format);
      const std::vector<std::string> wanted = describe(rows);
      // From few rows a reader may learn other types, because no row has all kinds of values.
      if (c.options.format == "jsonl" && count < 500) {
        EXPECT_EQ(read_lines(*file, 3, dice, 2).size(), wanted.size());
        continue;
      }
      for (size_t f = 0; f < c.fields.size() && count > 0; ++f)
        EXPECT_EQ(file->fields().at(f).name, c.fields[f].name);
      for (const int64_t span_rows : {1000, 100, 17, 1}) {
        const std::vector<std::string> lines = read_lines(*file, span_rows, dice, 1 + dice.below(300));
        ASSERT_EQ(lines.size(), wanted.size());
        for (size_t i = 0; i < lines.size(); ++i) ASSERT_EQ(lines[i], wanted[i]) << "row " << i;
      }
    }
  }
}

TEST(RowFormats, PiecesDoNotChangeAByte) {
  const TestDirectory dir;
  Dice dice(2);
  for (Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    // In the narrow formats more rows than a Parquet row group has (65,536); in all, enough rows for several
    // blocks of gzip.
    const bool is_narrow = c.options.format == "npy" || c.options.format == "csv";
    const Rows rows = random_rows(dice, c.fields, is_narrow ? 70000 : 3000, c.missing_in);
    c.options.metadata = {{"model", "m"}, {"precision", "f32"}};
    const std::string path = dir.path() + "/x";
    write_rows(path, rows, c.fields, c.options, dice, rows.count);
    const std::string whole = base::read_file(path);
    for (const int64_t most : {7, 1000}) {
      write_rows(path, rows, c.fields, c.options, dice, most);
      EXPECT_EQ(base::read_file(path), whole);
    }
  }
}

TEST(RowFormats, GroupsOfParquetEndAtTheSameRows) {
  if (!has_arrow()) GTEST_SKIP() << "a build without Arrow";
  const TestDirectory dir;
  Dice dice(3);
  const std::vector<Field> fields = {kInteger};
  const Rows rows = random_rows(dice, fields, 150000, 0);
  for (const char* format : {"parquet", "arrow"}) {
    const std::string path = dir.path() + "/x." + format;
    write_rows(path, rows, fields, {.format = format}, dice, 40000);
    const std::string whole = base::read_file(path);
    write_rows(path, rows, fields, {.format = format}, dice, 999);
    EXPECT_EQ(base::read_file(path), whole);
    const auto file = open_rows(path);
    // Row groups have 65,536 rows: a span of at least 70,000 rows takes two of them.
    std::vector<int64_t> counts;
    for (const RowSpan& span : spans_of(*file, 70000)) counts.push_back(span.rows);
    const bool is_parquet = std::string(format) == "parquet";
    const std::vector<int64_t> by_group = {131072, 18928}, exact = {70000, 70000, 10000};
    EXPECT_EQ(counts, is_parquet ? by_group : exact);
    EXPECT_EQ(read_lines(*file, 1000, dice, 5000), describe(rows));
  }
}

TEST(RowFormats, ColumnsAreChosenByName) {
  const TestDirectory dir;
  Dice dice(4);
  for (const Case& c : cases()) {
    if (c.fields.size() < 2) continue;
    SCOPED_TRACE(name_of(c));
    const Rows rows = random_rows(dice, c.fields, 100, 0);
    const std::string path = dir.path() + "/x" + file_ending(c.options);
    write_rows(path, rows, c.fields, c.options, dice, 50);
    const auto file = open_rows(path);
    const RowSpan all = spans_of(*file, 1000).at(0);
    const Rows two = read_span(*file, all, dice, 30, {"x", "text"});
    ASSERT_EQ(two.columns.size(), 2u);
    EXPECT_EQ(two.columns[0].field.name, "x");
    EXPECT_EQ(two.columns[1].strings, rows.find("text")->strings);
    try {
      (void)file->open(all, {"y"});
      ADD_FAILURE() << "no error";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::not_found);
      EXPECT_NE(e.message().find("there are text, n, x"), std::string::npos) << e.message();
    }
    EXPECT_THROW((void)file->open(all, {"x", "x"}), base::Error);
  }
}

TEST(RowFormats, ContentIsToldWhateverTheName) {
  const TestDirectory dir;
  Dice dice(5);
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const Rows rows = random_rows(dice, c.fields, 50, 0);
    const std::string path = dir.path() + "/a" + file_ending(c.options);
    write_rows(path, rows, c.fields, c.options, dice, 50);
    const std::string bytes = base::read_file(path);
    const uint64_t id = open_rows(path)->content_id();
    EXPECT_EQ(open_rows(dir.write("other/b" + file_ending(c.options), bytes))->content_id(), id);
    std::string changed = bytes;
    changed[changed.size() - 40] = static_cast<char>(changed[changed.size() - 40] ^ 1);
    const std::string other = dir.write("c" + file_ending(c.options), changed);
    try {
      EXPECT_NE(open_rows(other)->content_id(), id);
    } catch (const base::Error&) {  // so damaged that it does not open
    }
  }
}

TEST(RowFormats, ContentOfLargeFilesIsToldBySamples) {
  const TestDirectory dir;
  std::string lines;
  while (lines.size() < size_t{3} << 20) lines += base::concat("{\"n\":", 1'000'000 + lines.size(), "}\n");
  const auto id_of = [&](const std::string& bytes) {
    return open_rows(dir.write("x.jsonl", bytes))->content_id();
  };
  const uint64_t id = id_of(lines);
  EXPECT_EQ(id_of(lines), id);
  EXPECT_NE(id_of(lines + "\n"), id);
  for (const size_t at :
       {size_t{6}, size_t{60'000}, lines.size() - 60'000, lines.size() - 3, lines.size() / 17 + 9}) {
    std::string changed = lines;
    changed[at] = changed[at] == '1' ? '2' : '1';
    EXPECT_NE(id_of(changed), id) << at;
  }
}

TEST(RowFormats, CarriedColumnsKeepTheirTypes) {
  if (!has_arrow()) GTEST_SKIP() << "a build without Arrow";
  const TestDirectory dir;
  Dice dice(6);
  const std::vector<Field> narrow = {
      {"id", FieldKind::tensor, DType::i32}, {"h", FieldKind::tensor, DType::f16}, kText};
  const Rows rows = random_rows(dice, narrow, 300, 5);
  const std::string first = dir.path() + "/a.parquet", second = dir.path() + "/b.parquet";
  write_rows(first, rows, narrow, {.format = "parquet"}, dice, 100);
  {
    const auto to = store_of(second)->create(second);
    std::unique_ptr<RowWriter> writer;
    {
      const auto file = open_rows(first);
      const Rows read = read_span(*file, spans_of(*file, 1000).at(0), dice, 1000);
      ASSERT_NE(read.columns[0].original, nullptr);
      writer = make_row_writer(*to, file->fields(), {.format = "parquet", .carried = &read});
      for (int64_t at = 0; at < read.count; at += 7)
        writer->write(slice(read, at, std::min<int64_t>(7, read.count - at)));
    }
    // The writer keeps rows that wait alive, after the Rows object and its file are gone.
    writer->finish();
    to->commit();
  }
  EXPECT_EQ(base::read_file(second), base::read_file(first));
}

/// A disk without room.
class FullDisk : public StoreWriter {
 public:
  void write(std::string_view) override { base::fail(base::ErrorCode::exhausted, "No space left on device"); }
  int64_t written_bytes() const override { return 0; }
  void commit() override {}
};

TEST(RowFormats, AFullDiskIsNoFaultOfTheRows) {
  const TestDirectory dir;
  Dice dice(3);
  const Rows rows = random_rows(dice, {kReal}, 40, 0);
  for (const char* format : {"jsonl", "csv", "parquet", "arrow"}) {
    if (!has_arrow() && format[0] != 'j' && format[0] != 'c') continue;
    FullDisk disk;
    try {
      const std::unique_ptr<RowWriter> writer = make_row_writer(disk, {kReal}, {.format = format});
      writer->write(rows);
      writer->finish();
      ADD_FAILURE() << format;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::exhausted) << format << ": " << e.message();
    }
  }
}

TEST(RowFormats, TextsOfParquetAndArrowAreUtf8) {
  if (!has_arrow()) GTEST_SKIP() << "a build without Arrow";
  const TestDirectory dir;
  Dice dice(10);
  const std::vector<std::string> strings = {"whole \xc3\xa4", "z\xff!\xc3"};
  Rows rows;
  rows.count = 2;
  rows.columns = {{.field = kText, .strings = strings}, {.field = kRaw, .strings = strings}};
  for (const char* format : {"parquet", "arrow"}) {
    const std::string path = base::concat(dir.path(), "/x.", format);
    write_rows(path, rows, {kText, kRaw}, {.format = format}, dice, 2);
    EXPECT_EQ(read_lines(*open_rows(path), 2, dice, 2),
              (std::vector<std::string>{"text='whole \xc3\xa4'; raw='whole \xc3\xa4'; ",
                                        "text='z\xef\xbf\xbd!\xef\xbf\xbd'; raw='z\xff!\xc3'; "}));
  }
}

TEST(RowFormats, WhatAFormatCannotHoldIsRefused) {
  const TestDirectory dir;
  const std::string path = dir.path() + "/x";
  const auto file = store_of(path)->create(path);
  const auto refuses = [&](const std::vector<Field>& fields, const RowWriterOptions& options) {
    try {
      make_row_writer(*file, fields, options);
    } catch (const base::Error& e) {
      return e.code() == base::ErrorCode::unsupported;
    }
    return false;
  };
  EXPECT_TRUE(refuses({kText}, {.format = "npy"}));
  EXPECT_TRUE(refuses({kReal, kInteger}, {.format = "npy"}));
  EXPECT_TRUE(refuses({{"b", FieldKind::tensor, DType::bf16}}, {.format = "npy"}));
  EXPECT_TRUE(refuses({{"b", FieldKind::tensor, DType::i4}}, {.format = "jsonl"}));
  EXPECT_TRUE(refuses({kReal}, {.format = "jsonl", .compression = "zstd"}));
  EXPECT_TRUE(refuses({kReal}, {.format = "xml"}));
  EXPECT_TRUE(refuses({{"none", FieldKind::tensor, DType::f32, {2, 0}}}, {.format = "parquet"}));
  EXPECT_THROW(make_row_writer(*file, {kReal, kReal}, {.format = "csv"}), base::Error);
  Rows rows;
  rows.count = 1;
  rows.columns = {{.field = kReal, .numbers = Tensor::from<float>({1}, {1})}};
  rows.columns[0].is_missing = {true};
  EXPECT_THROW(make_row_writer(*file, {kReal}, {.format = "npy"})->write(rows), base::Error);
}

TEST(RowFormats, NumbersThatAreNotFiniteAreNullInJsonAndNamedInCsv) {
  const TestDirectory dir;
  Dice dice(9);
  Rows rows;
  rows.count = 4;
  rows.columns = {
      {.field = kReal, .numbers = Tensor::from<float>({4}, {NAN, INFINITY, -INFINITY, 1.5f})},
      {.field = kHalf,
       .numbers = Tensor::from<tensor::Half>(
           {4, 2}, {tensor::Half(1.f), tensor::Half(NAN), tensor::Half(2.f), tensor::Half(3.f),
                    tensor::Half(4.f), tensor::Half(-INFINITY), tensor::Half(5.f), tensor::Half(6.f)})}};
  const auto written = [&](const std::string& format) {
    EXPECT_EQ(holds_non_finite(format), format != "jsonl");
    const std::string path = dir.path() + "/x." + format;
    write_rows(path, rows, {kReal, kHalf}, {.format = format}, dice, 4);
    return base::read_file(path);
  };
  EXPECT_EQ(written("jsonl"), R"({"x":null,"h":[1.0,null]}
{"x":null,"h":[2.0,3.0]}
{"x":null,"h":[4.0,null]}
{"x":1.5,"h":[5.0,6.0]}
)");
  EXPECT_EQ(written("csv"), R"(x,h
NaN,"[1.0,NaN]"
Inf,"[2.0,3.0]"
-Inf,"[4.0,-Inf]"
1.5,"[5.0,6.0]"
)");
  EXPECT_EQ(read_lines(*open_rows(dir.path() + "/x.csv"), 9, dice, 9),
            (std::vector<std::string>{"x=f64[] nan; h='[1.0,NaN]'; ", "x=f64[] inf; h='[2.0,3.0]'; ",
                                      "x=f64[] -inf; h='[4.0,-Inf]'; ", "x=f64[] 1.5; h='[5.0,6.0]'; "}));
}

TEST(RowFormats, WideningBf16IsExact) {
  if (!has_arrow()) GTEST_SKIP() << "a build without Arrow";
  const TestDirectory dir;
  Dice dice(7);
  const std::vector<Field> fields = {{"b", FieldKind::tensor, DType::bf16, {2}}};
  Rows rows;
  rows.count = 1;
  rows.columns = {
      {.field = fields[0],
       .numbers = Tensor::from<tensor::BFloat16>({1, 2}, {tensor::BFloat16(1.5f), tensor::BFloat16(-3.f)})}};
  for (const char* format : {"parquet", "arrow", "jsonl"}) {
    const std::string path = dir.path() + "/x." + format;
    write_rows(path, rows, fields, {.format = format}, dice, 1);
    const auto file = open_rows(path);
    const std::string type = std::string(format) == "jsonl" ? "f64" : "f32";
    EXPECT_EQ(read_lines(*file, 10, dice, 10), std::vector<std::string>{"b=" + type + "[2] 1.5 -3; "});
  }
}

TEST(RowFormats, ReadingSpansDoesNotHoldTheFile) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps what is freed";
#endif
  const TestDirectory dir;
  constexpr int64_t kRows = 200'000;
  const Field vector = {"array", FieldKind::tensor, DType::f32, {32}};
  for (const char* format : {"jsonl", "csv", "npy", "parquet", "arrow"}) {
    SCOPED_TRACE(format);
    const bool is_array = std::string(format) == "npy";
    if (std::string("parquet arrow").find(format) != std::string::npos && !has_arrow()) continue;
    const std::vector<Field> fields =
        is_array ? std::vector<Field>{vector} : std::vector<Field>{kInteger, kText};
    const std::string path = dir.path() + "/x." + format;
    {
      const auto to = store_of(path)->create(path);
      const auto writer = make_row_writer(*to, fields, {.format = format});
      for (int64_t at = 0; at < kRows; at += 1000) {
        RowsBuilder rows(fields);
        for (int64_t row = 0; row < 1000; ++row) {
          if (is_array) {
            rows.column(0).add(Tensor::zeros(DType::f32, {32}));
          } else {
            rows.column(0).add_number(at + row);
            rows.column(1).add(std::to_string(at + row) + " " + std::string(120, 'x'));
          }
          rows.end_row();
        }
        writer->write(rows.finish());
      }
      writer->finish();
      to->commit();
    }
    const auto file = open_rows(path);
    const std::vector<RowSpan> spans = spans_of(*file, 10'000);
    const auto read = [&](const RowSpan& span) {
      int64_t rows = 0;
      const auto stream = file->open(span, {});
      for (Rows part; stream->next(1000, part);) rows += part.count;
      return rows;
    };
    int64_t rows = read(spans[0]);
    const int64_t before = base::resident_bytes();
    for (size_t i = 1; i < spans.size(); ++i) rows += read(spans[i]);
    const int64_t grown = base::resident_bytes() - before;
    EXPECT_EQ(rows, kRows);
    EXPECT_LT(grown, store_of(path)->open(path)->size() / 2);
  }
}

TEST(RowFormats, SeveralThreadsReadOneFile) {
  const TestDirectory dir;
  Dice dice(8);
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const Rows rows = random_rows(dice, c.fields, 2000, c.missing_in);
    const std::string path = dir.path() + "/x" + file_ending(c.options);
    write_rows(path, rows, c.fields, c.options, dice, 500);
    const std::vector<std::string> wanted = describe(rows);
    const auto file = open_rows(path);
    const std::vector<RowSpan> spans = spans_of(*file, 50);
    std::atomic<size_t> next = 0, wrong = 0;
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        Dice own(t);
        for (size_t i; (i = next++) < spans.size();) {
          const std::vector<std::string> lines = describe(read_span(*file, spans[i], own, 30));
          const auto first = wanted.begin() + spans[i].first_row;
          if (!std::equal(lines.begin(), lines.end(), first, first + spans[i].rows)) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0u);
  }
}

}  // namespace
}  // namespace trireme::data
