// Forms of stored weights that weight_only_linear does not support are errors about the model.
#include <gtest/gtest.h>

#include "ops/test_eval.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

/// The error message for a node with these attributes; empty if it is accepted.
std::string said_of(int64_t bits, int64_t group) {
  const Tensor x = testing::random_tensor(DType::f32, {2, 64}, -1, 1);
  const Tensor w = testing::random_tensor(DType::u8, {6, 64}, 0, 255);
  const Tensor scale = testing::random_tensor(DType::f32, {6, 2}, 0.1, 1);
  try {
    testing::run("weight_only_linear", {x, w, scale}, {{"bits", bits}, {"group", group}});
    return "";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    return e.message();
  }
}

TEST(WeightOnlyLinear, OtherBitsAndGroupsAreErrors) {
  EXPECT_EQ(said_of(8, 32), "");
  // 2^32 would become 0 bits if it were truncated to 32 bits.
  for (const int64_t bits :
       {int64_t{0}, int64_t{-8}, int64_t{1}, int64_t{16}, int64_t{1} << 32, (int64_t{1} << 32) + 8})
    EXPECT_NE(said_of(bits, 32).find("bits"), std::string::npos) << bits << ": " << said_of(bits, 32);
  for (const int64_t group : {int64_t{0}, int64_t{-32}, int64_t{1}, int64_t{33}, int64_t{1} << 40})
    EXPECT_NE(said_of(8, group).find("groups of"), std::string::npos) << group << ": " << said_of(8, group);
}

}  // namespace
}  // namespace trireme::ops
