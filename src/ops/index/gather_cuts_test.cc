// Every legal cut of gather and its gradient against the whole: unevenly cut rows, indices into any part.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using testing::values;
using tests::expect_cuts;

const Tensor kIds = Tensor::from<int64_t>({2, 3}, {0, 10, -1, 4, 4, -11});

TEST(GatherCut, RowsOfATableAreLookedUpByTheirOwner) {
  for (int parts : {2, 3, 4}) {
    // 11 rows are not divisible by any number of parts.
    EXPECT_EQ(expect_cuts({.op = "gather", .in = {values({11, 4}, 1), kIds}, .parts = parts}), "vbij");
    EXPECT_EQ(expect_cuts({.op = "gather",
                           .in = {values({4, 11, 3}, 2), kIds},
                           .attrs = {{"axis", int64_t{1}}},
                           .parts = parts}),
              "avcij");
  }
}

TEST(GatherCut, GradientsOfOwnRows) {
  const ir::Attrs attrs{{"shape", std::vector<int64_t>{11, 4}}, {"padding_idx", int64_t{-7}}};
  const Tensor dy = values({2, 3, 4}, 1), base = values({11, 4}, 2);
  for (int parts : {2, 3, 4}) {
    EXPECT_EQ(expect_cuts({.op = "gather_grad", .in = {dy, kIds}, .attrs = attrs, .parts = parts}), "ijbv");
    EXPECT_EQ(expect_cuts({.op = "gather_grad", .in = {dy, kIds, base}, .attrs = attrs, .parts = parts}),
              "ijbv");
  }
}

TEST(GatherCut, AWrongIdIsReportedByEveryPart) {
  const ir::Attrs part{{"first", int64_t{4}}, {"extent", int64_t{8}}};
  const Tensor rows = values({4, 2}, 1);
  EXPECT_EQ(testing::run("gather", {rows, testing::ints({3, 7})}, part)[0].to_doubles()[0], 0);
  EXPECT_THROW(testing::run("gather", {rows, testing::ints({8})}, part), base::Error);
}

}  // namespace
}  // namespace trireme::ops
