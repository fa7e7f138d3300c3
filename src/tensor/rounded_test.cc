// Deferred rounded weights: they know their source, and are filled on request.
#include "tensor/rounded.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::tensor {
namespace {

TEST(Rounded, IsKnownByItsSourceAndFilledOnce) {
  const Tensor source = Tensor::from<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor later = rounded_later(source, DType::bf16);
  EXPECT_EQ(later.dims(), source.dims());
  EXPECT_EQ(source_of(later).raw(), source.raw());
  EXPECT_FALSE(source_of(later.rows(0, 1)).defined());
  EXPECT_FALSE(source_of(source).defined());
  EXPECT_FALSE(source_of(Tensor()).defined());
  const Tensor content = Tensor::zeros(DType::bf16, {2, 3});
  fill_rounded(later, content);
  EXPECT_TRUE(later.same_as(content));
  EXPECT_THROW(fill_rounded(source, content), base::Error);
  EXPECT_EQ(rounded_later(Tensor::zeros(DType::f32, {0, 4}), DType::bf16).elements(), 0);
}

TEST(Rounded, TakesAddressesAlone) {
  const Tensor source = Tensor::from<float>({1}, {1});
  std::vector<Tensor> many;  // 128 GiB in all
  const Tensor wide = Tensor::view(DType::f32, {int64_t{1} << 34},
                                   {source.raw(), static_cast<size_t>(int64_t{1} << 36)}, source.owner());
  for (int i = 0; i < 4; ++i) many.push_back(rounded_later(wide, DType::bf16));
  EXPECT_EQ(many[3].bytes(), int64_t{1} << 35);
}

}  // namespace
}  // namespace trireme::tensor
