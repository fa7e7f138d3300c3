// Training batch norm with different ways of writing results: streaming stores, in place, planes.
#include "backend/cpu/norm/batch_norm_train.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace trireme::cpu {
namespace {

struct Aligned {
  explicit Aligned(int64_t n) : values(static_cast<size_t>(n) + 16) {}
  float* data() { return values.data() + (64 - reinterpret_cast<uintptr_t>(values.data()) % 64) / 4; }
  std::vector<float> values;
};

void fill(float* x, int64_t n, uint32_t seed) {
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = static_cast<float>(static_cast<int>(seed >> 16) - 32768) / 16384.0f;
  }
}

bool same(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

// 34 MB: streaming stores write the results, except in place, where plain stores are used.
TEST(BatchNormTrainLarge, StreamedResultsEqualThoseInPlace) {
  const ChannelShape shape{66 * 1024, 128, 1};
  const int64_t n = shape.elements(), c = shape.channels;
  base::ThreadPool pool(3);
  Aligned x(n), y(n), dy(n), dx(n);
  std::vector<float> v(static_cast<size_t>(8 * c));
  std::vector<char> space(static_cast<size_t>(batch_norm_workspace(shape)));
  fill(x.data(), n, 1);
  fill(dy.data(), n, 2);
  fill(v.data(), 2 * c, 3);
  BatchNormTrain forward{.shape = shape, .x = x.data(), .scale = v.data(), .bias = v.data() + c};
  forward.mean = v.data() + 2 * c;
  forward.inv_std = v.data() + 3 * c;
  forward.variance_unbiased = v.data() + 4 * c;
  forward.relu = true;
  forward.workspace = space.data();
  BatchNormGrad backward{.shape = shape, .dy = dy.data(), .x = x.data(), .scale = v.data()};
  backward.bias = forward.bias;
  backward.mean = forward.mean;
  backward.inv_std = forward.inv_std;
  backward.dscale = v.data() + 5 * c;
  backward.dbias = v.data() + 6 * c;
  backward.relu = true;
  backward.workspace = space.data();

  forward.y = y.data();
  batch_norm_train(forward, pool);
  backward.dx = dx.data();
  batch_norm_grad(backward, pool);
  backward.dx = dy.data();
  batch_norm_grad(backward, pool);
  EXPECT_TRUE(same(dx.data(), dy.data(), n));
  forward.y = x.data();
  batch_norm_train(forward, pool);
  EXPECT_TRUE(same(y.data(), x.data(), n));
}

}  // namespace
}  // namespace trireme::cpu
