// Launchers of softmax and its gradient.
#include "backend/cuda/norm/softmax.h"

#include "backend/cuda/device/types.h"
#include "backend/cuda/norm/softmax_kernels.h"
#include "backend/cuda/reduce/held_launch.h"

namespace trireme::cuda {
void softmax(On on, const SoftmaxArgs& a) {
  if (a.rows * a.n * a.inner == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* x = static_cast<const T*>(a.x);
    auto* y = static_cast<T*>(a.y);
    if (a.inner > 1) {
      launch(on.stream, "softmax", flat_launch(on.stream, a.rows * a.inner),
             SoftmaxLines<T>{x, nullptr, y, a.rows, a.n, a.inner, a.log});
    } else if (kHeldOne.holds(a.n)) {
      launch(on.stream, "softmax", held_launch(on.stream, a.rows, a.n, kHeldOne),
             HeldSoftmax<T>{{x, y, a.rows, a.n, a.log}});
    } else {
      launch(on.stream, "softmax", row_launch<T>(on.stream, a.rows, a.n),
             Softmax<T>{x, y, a.rows, a.n, a.log});
    }
  });
}

void softmax_grad(On on, const SoftmaxArgs& a, const void* dy) {
  if (a.rows * a.n * a.inner == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto *out = static_cast<const T*>(a.x), *up = static_cast<const T*>(dy);
    auto* dx = static_cast<T*>(a.y);
    if (a.inner > 1) {
      launch(on.stream, "softmax_grad", flat_launch(on.stream, a.rows * a.inner),
             SoftmaxLines<T>{out, up, dx, a.rows, a.n, a.inner, a.log});
    } else if (kHeldTwo.holds(a.n)) {
      launch(on.stream, "softmax_grad", held_launch(on.stream, a.rows, a.n, kHeldTwo),
             HeldSoftmaxGrad<T>{{up, out, dx, a.rows, a.n, a.log}});
    } else {
      launch(on.stream, "softmax_grad", row_launch<T>(on.stream, a.rows, a.n),
             SoftmaxGrad<T>{up, out, dx, a.rows, a.n, a.log});
    }
  });
}

}  // namespace trireme::cuda
