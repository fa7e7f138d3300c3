// The reduction over ranks, run thread by thread on the host, against the definition of its tree.
#include "backend/cuda/device/tree_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cuda/device/host_grid.h"
#include "backend/cuda/device/tree_reduce.h"
#include "tests/run_on_device.h"

namespace trireme::cuda {
namespace {

/// Values of many magnitudes, so that another order of summation gives other bits.
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

const std::byte* bytes_of(const void* at) { return static_cast<const std::byte*>(at); }

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
              TreeReduce<T, Combine>{bytes_of(pieces.data()), bytes_of(own.data()),
                                     reinterpret_cast<std::byte*>(own.data()), kStride, kN, me, ranks});
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

/// The slices begin `shift` bytes past an aligned address, as they may in collectives.
template <class T>
void check_shifted(tensor::Device& device, size_t shift) {
  constexpr size_t kN = 77;
  constexpr int kRanks = 3, kMe = 1;
  base::ThreadPool pool(1);
  const auto stream = device.open_stream(pool);
  tests::DeviceBuffers buffers(device, *stream);
  std::vector<T> pieces(kRanks * kN);
  std::vector<std::byte> own(kN * sizeof(T) + shift);
  for (int r = 0; r < kRanks; ++r) {
    for (size_t i = 0; i < kN; ++i) {
      const T value = element<T>(r, static_cast<int64_t>(i));
      pieces[static_cast<size_t>(r) * kN + i] = value;
      if (r == kMe) std::memcpy(own.data() + shift + i * sizeof(T), &value, sizeof(T));
    }
  }
  const auto size = [](size_t n) { return static_cast<int64_t>(n); };
  const void* all = buffers.add(size(pieces.size() * sizeof(T)), pieces.data());
  auto* slice = static_cast<std::byte*>(buffers.add(size(own.size()), own.data())) + shift;
  tree_reduce(
      {*stream, tensor::dtype_of<T>()},
      {.pieces = all, .own = slice, .out = slice, .stride = kN, .n = kN, .rank = kMe, .ranks = kRanks});
  std::vector<T> got(kN);
  stream->download(got.data(), slice, size(kN * sizeof(T)));
  stream->synchronize();
  for (size_t i = 0; i < kN; ++i) {
    using A = std::conditional_t<sizeof(T) == 2, float, T>;
    const T want = T(tree<T, A>(0, kRanks, size(i), false));
    ASSERT_EQ(std::memcmp(&want, &got[i], sizeof(T)), 0) << "shift " << shift << ", element " << i;
  }
  buffers.expect_guards("tree_reduce");
}

TEST(TreeKernels, SlicesOfABufferBeginAtAnyByte) {
  const auto device = tests::device_or_skip();
  for (const size_t shift : {0u, 1u, 4u, 6u}) {
    if (device == nullptr) break;
    check_shifted<float>(*device, shift);
    check_shifted<double>(*device, shift);
    check_shifted<int64_t>(*device, shift);
    check_shifted<tensor::Half>(*device, shift);
    check_shifted<tensor::BFloat16>(*device, shift);
  }
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
