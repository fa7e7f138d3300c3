// The reduction over ranks, thread by thread on the host, against the tree as its definition says it.
#include "backend/cuda/device/tree_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cuda/device/host_grid.h"

namespace trireme::cuda {
namespace {

/// Many magnitudes, so that another order of a sum gives other bits.
template <class T>
T element(int rank, int64_t i) {
  const int64_t mixed = (rank * 7919 + i * 104729 + 13) % 65521;
  if constexpr (std::is_same_v<T, int64_t>) {
    return mixed * 1000003 - 32760000000;
  } else {
    return T(static_cast<float>(mixed - 32760) * std::pow(2.0f, static_cast<float>(mixed % 11 - 13)));
  }
}

template <class T, class A>
A tree(int low, int n, int64_t i, bool maximum) {
  if (n == 1) return static_cast<A>(element<T>(low, i));
  int left = 1;
  while (2 * left < n) left *= 2;
  const A a = tree<T, A>(low, left, i, maximum), b = tree<T, A>(low + left, n - left, i, maximum);
  return maximum ? std::max(a, b) : a + b;
}

template <class T, class Combine>
void check(int ranks) {
  using A = typename TreeReduce<T, Combine>::A;
  constexpr int64_t kN = 77, kStride = 80;
  const int me = ranks / 2;
  std::vector<T> pieces(static_cast<size_t>(ranks * kStride), element<T>(99, 1)), own(kN);
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = 0; i < kN; ++i) {
      (r == me ? own[static_cast<size_t>(i)] : pieces[static_cast<size_t>(r * kStride + i)]) =
          element<T>(r, i);
    }
  }
  run_on_host({.blocks = 2, .threads = 32},
              TreeReduce<T, Combine>{pieces.data(), own.data(), own.data(), kStride, kN, me, ranks});
  for (int64_t i = 0; i < kN; ++i) {
    const T want = T(tree<T, A>(0, ranks, i, std::is_same_v<Combine, TreeMax>));
    ASSERT_EQ(std::memcmp(&want, &own[static_cast<size_t>(i)], sizeof(T)), 0)
        << ranks << " ranks, element " << i;
  }
}

TEST(TreeKernels, BitsOfTheTreeForEveryCount) {
  for (int ranks = 1; ranks <= 20; ++ranks) {
    check<float, TreeSum>(ranks);
    check<float, TreeMax>(ranks);
    check<double, TreeSum>(ranks);
    check<int64_t, TreeSum>(ranks);
    check<int64_t, TreeMax>(ranks);
    check<Half, TreeSum>(ranks);
    check<BFloat16, TreeSum>(ranks);
    check<BFloat16, TreeMax>(ranks);
  }
  check<float, TreeSum>(255);
}

TEST(TreeKernels, MaximumKeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int bad = 0; bad < 3; ++bad) {
    const auto load = [&](int r) { return r == bad ? nan : static_cast<float>(r); };
    EXPECT_TRUE(std::isnan(tree_of<float>(3, load, TreeMax{}))) << "NaN of rank " << bad;
  }
}

}  // namespace
}  // namespace trireme::cuda
