// gather and non_zero against plain loops: slices of every width, few and many indices, results per row.
#include <cstring>

#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::Tensor;

TEST(Gather, SlicesAreThoseOfPlainLoops) {
  std::mt19937 engine(2);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < 400; ++trial) {
    const int64_t outer = 1 + below(5), extent = 1 + below(20), slice = 1 + below(20),
                  count = below(4) == 0 ? 1 : below(40);
    const Tensor x = trial % 2 == 0
                         ? tests::random_tensor({outer, extent, slice}, static_cast<uint32_t>(trial))
                         : tests::random_bytes<int8_t>({outer, extent, slice}, 5, -9, 9);
    const int64_t bytes = slice * (trial % 2 == 0 ? 4 : 1);
    std::vector<int64_t> at;
    for (int64_t i = 0; i < count; ++i) at.push_back(below(2 * extent) - extent);
    const Tensor indices = Tensor::from<int64_t>({count}, std::span<const int64_t>(at));
    const Tensor y = tests::run_kernels("gather", {{"axis", int64_t{1}}}, {x, indices}, 1, {1})[0].out[0];
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t k = at[static_cast<size_t>(i)] + (at[static_cast<size_t>(i)] < 0 ? extent : 0);
        ASSERT_EQ(0, std::memcmp(y.raw() + (o * count + i) * bytes, x.raw() + (o * extent + k) * bytes,
                                 static_cast<size_t>(bytes)))
            << trial;
      }
    }
  }
}

TEST(NonZero, ColumnsAreTheIndicesInOrder) {
  for (const Dims& dims : {Dims{}, {0}, {1}, {700}, {3, 5}, {2, 0, 3}, {3, 1, 257}, {2, 3, 4, 5}}) {
    Tensor x = Tensor::zeros(tensor::DType::f32, dims);
    std::mt19937 engine(7);
    for (float& v : x.mutable_data<float>()) v = engine() % 3 == 0 ? 0.0f : engine() % 5 == 0 ? NAN : -1.0f;
    const Tensor y = tests::run_kernels("non_zero", {}, {x})[0].out[0];
    std::vector<std::vector<int64_t>> want(dims.size());
    for (int64_t i = 0; i < x.elements(); ++i) {
      if (x.data<float>()[static_cast<size_t>(i)] == 0) continue;
      int64_t rest = i;
      for (size_t d = dims.size(); d-- > 0; rest /= dims[d]) want[d].push_back(rest % dims[d]);
    }
    std::vector<int64_t> flat;
    for (const auto& row : want) flat.insert(flat.end(), row.begin(), row.end());
    EXPECT_EQ(y.to_ints(), flat) << tensor::to_string(dims);
  }
}

}  // namespace
}  // namespace trireme::ops
