// Sizes of elements and tensors of every type: no overflow, and no partial bytes taken for whole ones.
#include "tensor/element_bytes.h"

#include <gtest/gtest.h>

#include "tensor/tensor.h"

namespace trireme::tensor {
namespace {

TEST(ElementBytes, EveryTypeHasAStrideOrIsPacked) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    if (is_packed(type)) {
      EXPECT_LT(bytes_of(type, 8), 8) << name_of(type);
      try {
        element_bytes(type);
        ADD_FAILURE() << name_of(type);
      } catch (const base::Error& e) {
        EXPECT_EQ(e.code(), base::ErrorCode::unsupported);
      }
      continue;
    }
    for (const int64_t count : {0, 1, 2, 3, 7, 8, 1000})
      EXPECT_EQ(element_bytes(type) * count, bytes_of(type, count)) << name_of(type);
  }
}

// element_count refuses shapes whose bits bytes_of could not count: for any extents in a file the product is
// either correct or refused.
TEST(ElementBytes, NoShapeThatIsCountedOverflows) {
  constexpr int64_t kMost = int64_t{1} << 56;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_EQ(bytes_of(type, element_count({kMost})), kMost / 8 * bits_of(type)) << name_of(type);
    EXPECT_EQ(bytes_of(type, element_count({kMost, 0})), 0) << name_of(type);
  }
  for (const Dims& dims : {Dims{kMost + 1}, Dims{kMost, 2}, Dims{INT64_MAX}, Dims{INT64_MAX, INT64_MAX},
                           Dims{int64_t{1} << 32, int64_t{1} << 32}, Dims{0, kMost, 2}, Dims{-1}, Dims{0, -1},
                           Dims{INT64_MIN}}) {
    EXPECT_THROW(element_count(dims), base::Error) << to_string(dims);
    EXPECT_THROW(Tensor::empty(DType::u8, dims), base::Error) << to_string(dims);
  }
}

}  // namespace
}  // namespace trireme::tensor
