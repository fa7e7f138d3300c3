// Tests runs of rows: cut, joined, and built value by value.
#include "data/rows/rows.h"

#include <gtest/gtest.h>

#include "data/rows/row_trial.h"

namespace trireme::data {
namespace {

using namespace trial;  // NOLINT: this file's own vocabulary

const std::vector<Field> kFields = {{"t", FieldKind::text},
                                    {"n", FieldKind::tensor, DType::i64},
                                    {"v", FieldKind::tensor, DType::f32, {2}},
                                    {"r", FieldKind::tensor, DType::u8, {tensor::Dim::unknown()}}};

TEST(Rows, SlicesJoinToTheWhole) {
  Dice dice(1);
  const Rows rows = random_rows(dice, kFields, 100, 5);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<Rows> parts;
    for (int64_t at = 0; at < rows.count;) {
      const int64_t count = std::min(dice.below(30), rows.count - at);
      parts.push_back(slice(rows, at, count));
      at += count;
    }
    EXPECT_EQ(describe(join(std::move(parts))), describe(rows));
  }
  EXPECT_EQ(slice(rows, 100, 0).count, 0);
  EXPECT_THROW(slice(rows, 99, 2), base::Error);
}

TEST(Rows, TensorsOfASliceShareTheirBytes) {
  Dice dice(2);
  const Rows rows = random_rows(dice, kFields, 10, 0);
  const Rows part = slice(rows, 4, 2);
  EXPECT_EQ(part.find("v")->numbers.raw(), rows.find("v")->numbers.raw() + 4 * 8);
  EXPECT_EQ(part.find("v")->tensor_at(1).dims(), (tensor::Dims{2}));
  EXPECT_EQ(part.find("w"), nullptr);
}

TEST(Rows, ColumnsOfDifferentShapesBecomeRagged) {
  const auto rows_of = [](int64_t width) {
    Rows rows;
    rows.count = 2;
    const Field field = {"v", FieldKind::tensor, DType::f32, {width}};
    rows.columns = {{.field = field, .numbers = Tensor::zeros(DType::f32, {2, width})}};
    return rows;
  };
  const Rows both = join({rows_of(2), rows_of(3)});
  EXPECT_FALSE(both.columns[0].numbers.defined());
  EXPECT_EQ(both.columns[0].tensor_at(1).dims(), (tensor::Dims{2}));
  EXPECT_EQ(both.columns[0].tensor_at(2).dims(), (tensor::Dims{3}));
  EXPECT_TRUE(both.columns[0].field.shape[0].is_unknown());
}

TEST(Rows, AFailedRowHasAnErrorAndNoValue) {
  RowsBuilder builder(kFields);
  builder.column(0).add("first");
  builder.end_row();
  builder.column(0).add("second");
  builder.column(1).add_number(int64_t{7});
  builder.fail_row(base::Error(base::ErrorCode::invalid_argument, "no"));
  builder.column(0).add("third");
  EXPECT_THROW(builder.column(0), base::Error);
  EXPECT_THROW(builder.column(2).add(Tensor::zeros(DType::f32, {3})), base::Error);
  EXPECT_THROW(builder.column(2).add(Tensor::zeros(DType::f64, {2})), base::Error);
  builder.end_row();
  const Rows rows = builder.finish();
  ASSERT_EQ(rows.count, 3);
  EXPECT_EQ(rows.error_at(0), nullptr);
  EXPECT_EQ(rows.error_at(1)->message(), "no");
  EXPECT_TRUE(rows.find("t")->is_missing_at(1));
  EXPECT_EQ(rows.find("t")->strings[1], "");
  EXPECT_EQ(rows.find("n")->numbers.data<int64_t>()[1], 0);
  EXPECT_EQ(rows.find("t")->strings[2], "third");
  EXPECT_EQ(join({slice(rows, 0, 1), slice(rows, 1, 2)}).error_at(1)->message(), "no");
}

}  // namespace
}  // namespace trireme::data
