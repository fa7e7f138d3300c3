// Columns that are carried from one file to another: as they are, or mended where no reader would take them.
#if TRIREME_ARROW
#include "data/rows/arrow/arrow_columns.h"

#include <arrow/api.h>
#include <gtest/gtest.h>

#include <string>

namespace trireme::data {
namespace {

TEST(ArrowColumns, ACarriedTextThatIsNoUtf8IsMended) {
  arrow::StringBuilder builder;
  for (const char* text : {"whole", "b\xff", "behind"}) ASSERT_TRUE(builder.Append(std::string(text)).ok());
  const std::shared_ptr<arrow::Array> array = *builder.Finish();
  std::vector<std::optional<base::Error>> errors;
  const Field field{"t", FieldKind::text};
  const Column column = column_of(field, original_of(array, nullptr), errors);
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
