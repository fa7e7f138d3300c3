// Tests columns that directory names define: their values and types, beside the columns of the files.
#include "data/rows/partitions.h"

#include <gtest/gtest.h>

#include "data/rows/row_trial.h"

namespace trireme::data {
namespace {

using namespace trial;  // NOLINT: this file's own vocabulary

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& e) {
    return e.message();
  }
  return "no error";
}

TEST(Partitions, AreTheDirectoriesThatNameAKey) {
  EXPECT_EQ(partitions_of("data/year=2024/x/country=DE/a=b.parquet"),
            (Pairs{{"year", "2024"}, {"country", "DE"}}))
      << "a file is no directory";
  EXPECT_EQ(partitions_of("s3://bucket/day=2024-01-01/part.csv?region=eu"), (Pairs{{"day", "2024-01-01"}}));
  EXPECT_EQ(partitions_of("/what%20is=a%2Fb%3D%zz/x.csv"), (Pairs{{"what is", "a/b=%zz"}}));
  EXPECT_EQ(partitions_of("=1/k=/k2=a=b/x.csv"), (Pairs{{"k", ""}, {"k2", "a=b"}}));
  EXPECT_NE(error_of([] { partitions_of("k=1/k=2/x.csv"); }).find("two directories"), std::string::npos);
}

TEST(Partitions, AreNumbersWhereAllAre) {
  const std::vector<Field> fields =
      partition_fields({"in/n=1/t=a/x.csv", "in/n=-07/t=2/x.csv", "in/n=__HIVE_DEFAULT_PARTITION__/t=3/x.csv",
                        "in/n=9223372036854775807/t=4/big=9223372036854775808/x.csv"});
  ASSERT_EQ(fields.size(), 3U);
  EXPECT_EQ(fields[0], (Field{.name = "n", .dtype = DType::i64}));
  EXPECT_EQ(fields[1], (Field{.name = "t", .kind = FieldKind::text}));
  EXPECT_EQ(fields[2], (Field{.name = "big", .kind = FieldKind::text})) << "no i64 holds it";
  EXPECT_TRUE(partition_fields({"x.csv", "a/b/y.csv"}).empty());
}

TEST(Partitions, StandInEveryRowBesideTheFilesColumns) {
  const TestDirectory dir;
  const std::string text = "{\"a\":1,\"b\":\"x\"}\n{\"a\":2,\"b\":\"y\"}\n{\"a\":3,\"b\":\"z\"}\n";
  const std::string path = dir.write("n=5/t=__HIVE_DEFAULT_PARTITION__/b=other/x.jsonl", text);
  const std::vector<Field> fields = partition_fields({path, "n=6/t=word/x.jsonl"});
  const auto file = open_rows(path, {.partitions = fields});
  ASSERT_EQ(file->fields().size(), 4U) << "the file's own b stands";
  EXPECT_EQ(file->content_id(), open_rows(path)->content_id());
  Dice dice(3);
  const RowSpan all = spans_of(*file, 100).at(0);
  const auto lines = [&](const std::vector<std::string>& columns) {
    return describe(read_span(*file, all, dice, 2, columns));
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines({}),
            (Lines{"a=i64[] 1; b='x'; n=i64[] 5; t=missing; ", "a=i64[] 2; b='y'; n=i64[] 5; t=missing; ",
                   "a=i64[] 3; b='z'; n=i64[] 5; t=missing; "}));
  EXPECT_EQ(lines({"n", "b"}), (Lines{"n=i64[] 5; b='x'; ", "n=i64[] 5; b='y'; ", "n=i64[] 5; b='z'; "}));
  EXPECT_EQ(lines({"n"}), (Lines{"n=i64[] 5; ", "n=i64[] 5; ", "n=i64[] 5; "}));
  EXPECT_NE(error_of([&] { lines({"m"}); }).find("there are a, b, n, t"), std::string::npos);
}

TEST(Partitions, ADamagedRowKeepsThem) {
  const TestDirectory dir;
  const std::string path = dir.write("n=5/x.jsonl", "{\"a\":1}\nnot json\n");
  const auto file = open_rows(path, {.partitions = partition_fields({path})});
  const std::unique_ptr<RowStream> stream = file->open(spans_of(*file, 100).at(0), {"a", "n"});
  Rows rows;
  ASSERT_TRUE(stream->next(10, rows));
  ASSERT_NE(rows.error_at(1), nullptr);
  EXPECT_EQ(rows.columns[1].tensor_at(1).data<int64_t>()[0], 5);
}

TEST(Partitions, AValueThatIsNoNumberIsRefusedWhereOthersAre) {
  const TestDirectory dir;
  const std::string path = dir.write("n=five/x.jsonl", "{\"a\":1}\n");
  EXPECT_NE(error_of([&] {
              open_rows(path, {.partitions = {{.name = "n", .dtype = DType::i64}}});
            }).find("is no whole number"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::data
