// Columns that are carried from one file to another: as they are, or mended where no reader would take them.
#if TRIREME_ARROW
#include "data/rows/arrow/arrow_columns.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include <memory>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "data/readers/arrow_values.h"
#include "data/readers/test_files.h"
#include "data/rows/row_file.h"
#include "data/rows/row_writer.h"

namespace trireme::data {
namespace {

Column column_of_array(const std::shared_ptr<arrow::Array>& array, const PoolHandle& pool = nullptr) {
  return column_of(field_of_arrow(*arrow::field("c", array->type())), original_of(array, pool));
}

Rows rows_of(Column column, int64_t count) {
  Rows rows;
  rows.count = count;
  rows.columns.push_back(std::move(column));
  return rows;
}

/// The rows in a file of this format, closed.
std::string written(const std::string& path, const Rows& rows, const std::string& format) {
  const auto to = store_of(path)->create(path);
  const auto writer = make_row_writer(*to, {rows.columns[0].field}, {.format = format, .carried = &rows});
  writer->write(rows);
  writer->finish();
  to->commit();
  return base::read_file(path);
}

/// ["a, b", "c"], [], nothing, [nothing, "\"", byte 1].
std::shared_ptr<arrow::Array> lists_of_texts() {
  const auto texts = std::make_shared<arrow::StringBuilder>();
  arrow::ListBuilder lists(arrow::default_memory_pool(), texts);
  EXPECT_TRUE(lists.Append().ok() && texts->AppendValues({"a, b", "c"}).ok());
  EXPECT_TRUE(lists.Append().ok() && lists.AppendNull().ok() && lists.Append().ok());
  EXPECT_TRUE(texts->AppendNull().ok() && texts->Append("\"").ok() && texts->Append("\x01").ok());
  return *lists.Finish();
}

/// Lists of lists of integers: `values` by row and list; a list that begins with -1 has a null first.
std::shared_ptr<arrow::Array> lists_of_lists(const std::vector<std::vector<std::vector<int64_t>>>& values) {
  const auto numbers = std::make_shared<arrow::Int64Builder>();
  const auto inner = std::make_shared<arrow::ListBuilder>(arrow::default_memory_pool(), numbers);
  arrow::ListBuilder outer(arrow::default_memory_pool(), inner);
  for (const auto& row : values) {
    EXPECT_TRUE(outer.Append().ok());
    for (const auto& list : row) {
      EXPECT_TRUE(inner->Append().ok());
      for (const int64_t v : list) EXPECT_TRUE((v < 0 ? numbers->AppendNull() : numbers->Append(v)).ok());
    }
  }
  return *outer.Finish();
}

TEST(ArrowColumns, ListsOfTextsAreJson) {
  const TestDirectory dir;
  const Column column = column_of_array(lists_of_texts());
  EXPECT_TRUE(column.field.kind == FieldKind::text && column.field.is_json);
  EXPECT_EQ(column.strings,
            (std::vector<std::string>{R"(["a, b","c"])", "[]", "", R"([null,"\"","\u0001"])"}));
  const Rows rows = rows_of(column, 4);
  EXPECT_EQ(written(dir.path() + "/x.jsonl", rows, "jsonl"), R"({"c":["a, b","c"]}
{"c":[]}
{"c":null}
{"c":[null,"\"","\u0001"]}
)");
  EXPECT_EQ(written(dir.path() + "/x.csv", rows, "csv"),
            "c\n\"[\"\"a, b\"\",\"\"c\"\"]\"\n[]\n\"\"\n\"[null,\"\"\\\"\"\"\",\"\"\\u0001\"\"]\"\n");
}

TEST(ArrowColumns, MapsAndStructsAreJson) {
  const auto keys = std::make_shared<arrow::StringBuilder>();
  const auto items = std::make_shared<arrow::DoubleBuilder>();
  arrow::MapBuilder maps(arrow::default_memory_pool(), keys, items);
  ASSERT_TRUE(maps.Append().ok() && keys->AppendValues({"k", "l"}).ok());
  ASSERT_TRUE(items->Append(1.5).ok() && items->AppendNull().ok());
  const std::shared_ptr<arrow::Array> map = *maps.Finish();
  EXPECT_EQ(column_of_array(map).strings.at(0), R"({"k":1.5,"l":null})");
  const auto numbers = std::make_shared<arrow::Int32Builder>();
  arrow::MapBuilder by_number(arrow::default_memory_pool(), numbers, keys);
  ASSERT_TRUE(by_number.Append().ok() && numbers->Append(7).ok() && keys->Append("seven").ok());
  EXPECT_EQ(column_of_array(*by_number.Finish()).strings.at(0), R"([{"key":7,"value":"seven"}])");
  const auto parts =
      arrow::StructArray::Make({map, lists_of_texts()->Slice(0, 1)}, std::vector<std::string>{"m", "t"});
  ASSERT_TRUE(parts.ok());
  EXPECT_EQ(arrow_json_at(**parts, 0), R"({"m":{"k":1.5,"l":null},"t":["a, b","c"]})");
  const auto ends =
      std::make_shared<arrow::Int32Array>(2, arrow::Buffer::FromString(std::string("\x2\0\0\0\x3\0\0\0", 8)));
  arrow::StringBuilder words;
  ASSERT_TRUE(words.AppendValues({"one", "two"}).ok());
  const auto runs = arrow::RunEndEncodedArray::Make(3, ends, *words.Finish());
  ASSERT_TRUE(runs.ok());
  EXPECT_EQ(arrow_text_at(**runs, 1), "one");
  EXPECT_EQ(arrow_text_at(**runs, 2), "two");
}

/// What a column that is only carried holds is nobody's fault.
TEST(ArrowColumns, ValuesThatAreNoTensorsAreCarried) {
  const TestDirectory dir;
  const Column column = column_of_array(lists_of_lists({{{1, 2}, {3, 4}}, {{1, 2}, {3}}, {{-1}}, {}}));
  ASSERT_EQ(column.errors.size(), 4u);
  EXPECT_EQ(column.error_at(0), nullptr);
  EXPECT_NE(column.error_at(1)->message().find("2 and 1 items"), std::string::npos);
  EXPECT_NE(column.error_at(2)->message().find("null among its items"), std::string::npos);
  EXPECT_TRUE(!column.is_missing_at(0) && column.is_missing_at(1) && column.is_missing_at(2));
  const Rows rows = rows_of(column, 4), parts = join({slice(rows, 0, 2), slice(rows, 2, 2)});
  EXPECT_EQ(slice(rows, 3, 1).columns[0].errors.size(), 0u);
  const std::string json = "{\"c\":[[1,2],[3,4]]}\n{\"c\":[[1,2],[3]]}\n{\"c\":[[null]]}\n";
  for (const Rows& all : {slice(rows, 0, 3), slice(parts, 0, 3)}) {
    EXPECT_EQ(written(dir.path() + "/x.jsonl", all, "jsonl"), json);
    EXPECT_EQ(written(dir.path() + "/x.csv", all, "csv"),
              "c\n\"[[1,2],[3,4]]\"\n\"[[1,2],[3]]\"\n[[null]]\n");
  }
  const std::string path = dir.path() + "/x.parquet";
  written(path, rows, "parquet");
  const auto file = open_row_file(store_of(path), path, {});
  Rows read;
  ASSERT_TRUE(file->open({.rows = 4, .end = 1}, {})->next(4, read));
  EXPECT_TRUE(read.errors.empty());
  EXPECT_TRUE(array_of(read.columns[0].original)->Equals(array_of(column.original)));
  // Without the library's own form the value is lost, and that is said.
  Rows lost = rows;
  lost.columns[0].original = nullptr;
  for (const char* format : {"jsonl", "csv", "arrow"})
    EXPECT_THROW(written(dir.path() + "/y", lost, format), base::Error) << format;
}

/// Words of 50 rows, a list for each, coded by a dictionary, in row groups of 20.
void write_coded_lists(const std::string& path) {
  arrow::ListBuilder lists(arrow::default_memory_pool(), std::make_shared<arrow::Int32Builder>());
  auto& codes = static_cast<arrow::Int32Builder&>(*lists.value_builder());
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(lists.Append().ok() && codes.Append(i % 3).ok());
  arrow::StringBuilder words;
  ASSERT_TRUE(words.AppendValues({"a", "b", "c"}).ok());
  const std::shared_ptr<arrow::Array> plain = *lists.Finish();
  const auto& list = static_cast<const arrow::ListArray&>(*plain);
  const auto coded = arrow::DictionaryArray::FromArrays(list.values(), *words.Finish());
  ASSERT_TRUE(coded.ok());
  const auto column = arrow::ListArray::FromArrays(arrow::Int32Array(51, list.value_offsets()), **coded);
  ASSERT_TRUE(column.ok());
  const auto table = arrow::Table::Make(
      arrow::schema(arrow::FieldVector{arrow::field("c", (*column)->type())}), arrow::ArrayVector{*column});
  const auto file = arrow::io::FileOutputStream::Open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), *file, 20,
                                         parquet::default_writer_properties(),
                                         parquet::ArrowWriterProperties::Builder().store_schema()->build())
                  .ok());
  ASSERT_TRUE((*file)->Close().ok());
}

TEST(ArrowColumns, NestedDictionariesOfSeveralRowGroups) {
  const TestDirectory dir;
  const std::string path = dir.path() + "/x.parquet";
  write_coded_lists(path);
  const auto file = open_row_file(store_of(path), path, {});
  const auto stream = file->open({.first_row = 5, .rows = 45, .begin = 0, .end = 3}, {});
  int64_t row = 5;
  for (Rows rows; stream->next(50, rows);) {
    for (const std::string& text : rows.columns[0].strings)
      EXPECT_EQ(text, base::concat("[\"", std::string(1, static_cast<char>('a' + row++ % 3)), "\"]"));
  }
  EXPECT_EQ(row, 50);
}

/// Texts behind views stay where they are when arrays are put together.
TEST(ArrowColumns, WaitingGroupsKeepTheMemoryOfTheirParts) {
  const TestDirectory dir;
  for (const char* format : {"parquet", "arrow"}) {
    auto pool = std::make_shared<arrow::CappedMemoryPool>(arrow::default_memory_pool(), 1 << 20);
    const std::weak_ptr<arrow::CappedMemoryPool> is_there = pool;
    arrow::StringViewBuilder builder(pool.get());
    for (int i = 0; i < 40; ++i) ASSERT_TRUE(builder.Append(std::string(100, 'a')).ok());
    Rows rows = rows_of(column_of_array(*builder.Finish(), pool), 40);
    rows = join({slice(rows, 0, 7), slice(rows, 7, 33)});
    pool = nullptr;
    const std::string path = base::concat(dir.path(), "/x.", format);
    const auto to = store_of(path)->create(path);
    const auto writer = make_row_writer(*to, {rows.columns[0].field}, {.format = format, .carried = &rows});
    writer->write(rows);
    rows = {};
    EXPECT_FALSE(is_there.expired()) << format;
    writer->finish();
    EXPECT_FALSE(is_there.expired()) << format;
    to->commit();
    const auto file = open_row_file(store_of(path), path, {});
    EXPECT_EQ(file->fields().size(), 1u) << format;
  }
}

TEST(ArrowColumns, ACarriedTextThatIsNoUtf8IsMended) {
  arrow::StringBuilder builder;
  for (const char* text : {"whole", "b\xff", "behind"}) ASSERT_TRUE(builder.Append(std::string(text)).ok());
  const std::shared_ptr<arrow::Array> array = *builder.Finish();
  const Field field{"t", FieldKind::text};
  const Column column = column_of(field, original_of(array, nullptr));
  const std::shared_ptr<arrow::Array> mended = arrow_array_of(column, 0, 3, arrow::utf8());
  EXPECT_TRUE(mended->ValidateFull().ok());
  ASSERT_EQ(mended->type_id(), arrow::Type::STRING);
  const auto& texts = static_cast<const arrow::StringArray&>(*mended);
  EXPECT_EQ(texts.GetString(0), "whole");
  EXPECT_EQ(texts.GetString(1), "b\xef\xbf\xbd");
  EXPECT_EQ(texts.GetString(2), "behind");
  EXPECT_EQ(arrow_array_of(column, 2, 1, arrow::utf8())->data()->buffers[2], array->data()->buffers[2])
      << "a good text is copied";
}

}  // namespace
}  // namespace trireme::data
#endif
