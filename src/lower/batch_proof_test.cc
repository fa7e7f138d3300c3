// The proof that a model may be batched: independent rows, mixed rows, a fixed first dimension, odd inner
// sizes.
#include "lower/batch_proof.h"

#include <gtest/gtest.h>

#include "ops/table.h"

namespace trireme::lower {
namespace {

bool proven(const std::string& body) {
  return why_not_batched(ir::parse("graph \"g\"\n" + body, ops::table())).empty();
}

TEST(BatchProof, RowsThatStayApartMayBeBatched) {
  EXPECT_TRUE(proven("  %0 = input \"x\" : f32[n,4]\n  %1 = relu(%0)\n  return %1 \"y\"\n"));
  EXPECT_TRUE(proven("  %0 = input \"x\" : f32[n,len]\n  %1 = softmax(%0) {axis=1}\n  return %1 \"y\"\n"));
}

TEST(BatchProof, RowsThatMeetMayNot) {
  EXPECT_FALSE(proven("  %0 = input \"x\" : f32[t,4]\n  %1 = softmax(%0) {axis=0}\n  return %1 \"y\"\n"));
}

TEST(BatchProof, ADimensionWithTheNameOfTheRowsIsNoRowsOwn) {
  EXPECT_FALSE(proven("  %0 = input \"x\" : f32[n,n]\n  %1 = relu(%0)\n  return %1 \"y\"\n"));
}

// For len 16 and 64 each row forms whole rows of 64 elements; for len 8 two rows share one.
TEST(BatchProof, RowsThatMeetAtSomeLengthsMayNot) {
  EXPECT_FALSE(
      proven("  %0 = input \"x\" : f32[n,len,4]\n  %1 = const : i64[2]{-1, 64}\n  %2 = reshape(%0, %1)\n"
             "  %3 = softmax(%2) {axis=1}\n  %4 = const : i64[2]{0, -1}\n  return %3 \"y\"\n"));
}

TEST(BatchProof, AFixedFirstDimensionIsNoBatch) {
  EXPECT_FALSE(proven("  %0 = input \"x\" : f32[1,4]\n  %1 = relu(%0)\n  return %1 \"y\"\n"));
}

}  // namespace
}  // namespace trireme::lower
