// Reference kernel of conv_grad_w: one result plane of taps per task, sums in fixed order.
#include <algorithm>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/conv/conv_grad.h"
#include "ops/conv/conv_kernels_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

struct GradWPlan {
  Window window;
  int64_t batch, in_channels, out_channels, group;
};

/// sum over result points p of dy[p] * x[p stride + k dilation - pad] for one pair of planes.
template <class T>
T tap_sum(const Window& w, const std::array<int64_t, 3>& k, const T* x, const T* dy) {
  const TapRange rd = tap_range(w[0], k[0]), rh = tap_range(w[1], k[1]), rw = tap_range(w[2], k[2]);
  T sum = 0;
  for (int64_t d = rd.first; d < rd.last; ++d) {
    const int64_t id = d * w[0].stride - w[0].pad_begin + k[0] * w[0].dilation;
    for (int64_t h = rh.first; h < rh.last; ++h) {
      const int64_t ih = h * w[1].stride - w[1].pad_begin + k[1] * w[1].dilation;
      const T* row = x + (id * w[1].in + ih) * w[2].in - w[2].pad_begin + k[2] * w[2].dilation;
      const T* g = dy + (d * w[1].out + h) * w[2].out;
      for (int64_t i = rw.first; i < rw.last; ++i) sum += g[i] * row[i * w[2].stride];
    }
  }
  return sum;
}

/// All taps of weight plane `task` = (o, c).
template <class T>
void grad_w_plane(const GradWPlan& p, const T* x, const T* dy, int64_t task, T* dw) {
  const int64_t group_in = p.in_channels / p.group, group_out = p.out_channels / p.group;
  const int64_t o = task / group_in, c = o / group_out * group_in + task % group_in;
  std::array<int64_t, 3> k{};
  for (k[0] = 0; k[0] < p.window[0].kernel; ++k[0]) {
    for (k[1] = 0; k[1] < p.window[1].kernel; ++k[1]) {
      for (k[2] = 0; k[2] < p.window[2].kernel; ++k[2]) {
        T sum = 0;
        for (int64_t n = 0; n < p.batch; ++n) {
          sum += tap_sum<T>(p.window, k, x + (n * p.in_channels + c) * p.window.in_points(),
                            dy + (n * p.out_channels + o) * p.window.out_points());
        }
        *dw++ = sum;
      }
    }
  }
}

ir::BoundKernel prepare_grad_w_reference(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0), dy = init.node.in_dims(1), w = init.node.out_dims(0);
  const GradWPlan plan{window_of(init.node.attrs, x, w), x[0], x[1], dy[1],
                       init.node.attrs.get_int("group", 1)};
  int64_t points = 1;
  for (size_t i = 2; i < dy.size(); ++i) points *= dy[i];
  base::require(plan.window.out_points() == points && x[0] == dy[0],
                "conv_grad_w: dy does not have the extents of the convolution's result");
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      const int64_t planes = plan.out_channels * (plan.in_channels / plan.group);
      cpu::pool_of(args.stream).run(planes, [&](int64_t task) {
        grad_w_plane<T>(plan, in_ptr<T>(args, 0), in_ptr<T>(args, 1), task,
                        out_ptr<T>(args, 0) + task * plan.window.kernel_points());
      });
    }};
  });
}

}  // namespace

std::vector<ir::Kernel> conv_grad_w_cpu_kernels() {
  return faster({conv_grad_w_channels_last()}, float_reference(prepare_grad_w_reference));
}

}  // namespace trireme::ops
