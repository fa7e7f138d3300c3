// Launchers of normalisation over neighbouring channels.
#include "backend/cuda/image/lrn.h"

#include "backend/cuda/image/lrn_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

LrnWalk walk_of(const LrnShape& s) {
  const int64_t count = s.batch * s.channels * s.points;
  return {s, Divider(s.points, count), Divider(s.channels, count), count};
}

}  // namespace

void lrn(On on, const LrnShape& s, const void* x, void* y) {
  const LrnWalk walk = walk_of(s);
  if (walk.count == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "lrn", flat_launch(on.stream, walk.count),
           Lrn<T>{walk, static_cast<const T*>(x), static_cast<T*>(y)});
  });
}

int64_t lrn_grad_workspace_bytes(const LrnShape& s) {
  return 2 * s.batch * s.channels * s.points * static_cast<int64_t>(sizeof(float));
}

void lrn_grad(On on, const LrnShape& s, const LrnGradArgs& a) {
  const LrnWalk walk = walk_of(s);
  if (walk.count == 0) return;
  auto* direct = static_cast<float*>(a.workspace);
  float* shared = direct + walk.count;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* x = static_cast<const T*>(a.x);
    const Launch grid = flat_launch(on.stream, walk.count);
    launch(on.stream, "lrn_terms", grid, LrnTerms<T>{walk, static_cast<const T*>(a.dy), x, direct, shared});
    launch(on.stream, "lrn_grad", grid, LrnGrad<T>{walk, x, direct, shared, static_cast<T*>(a.dx)});
  });
}

}  // namespace trireme::cuda
