// Tests the proof that a model may be batched: rows apart, rows mixed, a fixed first dimension, odd inner
// sizes.
#include "engine/batch_proof.h"

#include <gtest/gtest.h>

#include "ops/table.h"

namespace trireme::engine {
namespace {

bool proven(const std::string& body) {
  return batches_by_rows(ir::parse("graph \"g\"\n" + body, ops::table()));
}

TEST(BatchProof, RowsThatStayApartMayBeBatched) {
  EXPECT_TRUE(proven("  %0 = input \"x\" : f32[n,4]\n  %1 = relu(%0)\n  return %1 \"y\"\n"));
  EXPECT_TRUE(proven("  %0 = input \"x\" : f32[n,len]\n  %1 = softmax(%0) {axis=1}\n  return %1 \"y\"\n"));
}

TEST(BatchProof, RowsThatMeetMayNot) {
  EXPECT_FALSE(proven("  %0 = input \"x\" : f32[t,4]\n  %1 = softmax(%0) {axis=0}\n  return %1 \"y\"\n"));
}

TEST(BatchProof, AFixedFirstDimensionIsNoBatch) {
  EXPECT_FALSE(proven("  %0 = input \"x\" : f32[1,4]\n  %1 = relu(%0)\n  return %1 \"y\"\n"));
}

}  // namespace
}  // namespace trireme::engine
