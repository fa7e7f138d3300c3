// top_k: selection by ranks against selection by values, with equal values, zeros of both signs, NaN and
// infinities.
#include <cstring>
#include <limits>

#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;

TEST(TopK, RanksSelectWhatComparisonsDo) {
  std::mt19937 engine(11);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int trial = 0; trial < 300; ++trial) {
    const tensor::Dims dims{1 + below(4), 1 + below(trial % 10 == 0 ? 3000 : 90), 1 + below(4)};
    Tensor x = tests::random_tensor(dims, static_cast<uint32_t>(trial));
    for (float& v : x.mutable_data<float>()) {
      const float special[] = {
          0.0f, -0.0f, 1.0f, -1.0f, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
      if (below(4) == 0) v = special[below(7)];
      if (trial % 7 == 0) v = static_cast<float>(below(3));
    }
    if (trial % 11 == 0) std::sort(x.mutable_data<float>().begin(), x.mutable_data<float>().end());
    const int64_t axis = below(3), k = below(dims[static_cast<size_t>(axis)] + 1);
    const ir::Attrs attrs{{"axis", axis}, {"largest", below(2)}};
    const auto results = tests::run_kernels("top_k", attrs, {x, Tensor::from<int64_t>({1}, {k})}, 2);
    ASSERT_EQ(results.size(), 2u);
    for (size_t out = 0; out < 2; ++out) {
      const Tensor &got = results[0].out[out], &want = results[1].out[out];
      EXPECT_EQ(0, std::memcmp(got.raw(), want.raw(), static_cast<size_t>(want.bytes())))
          << out << " of " << tensor::to_string(dims) << " k " << k << attrs.to_string();
    }
  }
}

}  // namespace
}  // namespace trireme::ops
