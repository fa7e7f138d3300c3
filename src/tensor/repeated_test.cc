// Tensors that repeat a block.
#include "tensor/repeated.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"

namespace trireme::tensor {
namespace {

Tensor counting(int64_t count) {
  Tensor block = Tensor::empty(DType::f32, {count});
  const auto values = block.mutable_data<float>();
  std::iota(values.begin(), values.end(), 0.0f);
  return block;
}

TEST(Repeated, HasTheBlocksElementsFromTheFirstOn) {
  const int64_t count = 3 * kRepeatedUnit, first = 2 * kRepeatedUnit;
  const Tensor t = repeated(counting(count), first, {7, 2000});
  const auto values = t.data<float>();
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], static_cast<float>((first + static_cast<int64_t>(i)) % count)) << i;
}

TEST(Repeated, IsKnownAsSuch) {
  const Tensor block = counting(kRepeatedUnit), t = repeated(block, 0, {100, 1000});
  EXPECT_TRUE(repetition_of(t).block.same_as(block));
  EXPECT_TRUE(repetition_of(t.reshaped({1000, 100})).block.defined());
  EXPECT_FALSE(repetition_of(t.rows(50, 100)).block.defined());
  EXPECT_FALSE(repetition_of(t.clone()).block.defined());
  EXPECT_FALSE(repetition_of(block).block.defined());
  EXPECT_FALSE(repetition_of(Tensor()).block.defined());
}

TEST(Repeated, AWriteIsItsOwn) {
  const Tensor block = counting(kRepeatedUnit);
  Tensor a = repeated(block, 0, {2 * kRepeatedUnit});
  const Tensor b = repeated(block, 0, {2 * kRepeatedUnit});
  a.mutable_data<float>()[kRepeatedUnit] = -1;
  EXPECT_EQ(a.data<float>()[0], 0.0f);
  EXPECT_EQ(b.data<float>()[kRepeatedUnit], 0.0f);
}

TEST(Repeated, RefusesPartsOfPages) {
  EXPECT_THROW(repeated(counting(100), 0, {10}), base::Error);
  EXPECT_THROW(repeated(counting(kRepeatedUnit), 1, {10}), base::Error);
  EXPECT_EQ(repeated(counting(kRepeatedUnit), 0, {0, 5}).elements(), 0);
}

}  // namespace
}  // namespace trireme::tensor
