// Reference kernels of conv_transpose and deform_conv on CPU.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/conv/conv_kernels_cpu.h"
#include "ops/conv/transpose_window.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

struct TransposePlan {
  Window window;
  int64_t batch, in_channels, out_channels, group;
};

/// Adds factor * x[i] at i * stride + k * dilation - pad of the result plane, for all input points i.
template <class T>
void scatter_tap(const Window& w, const std::array<int64_t, 3>& k, const T* x, T factor, T* y) {
  for (int64_t d = 0; d < w[0].in; ++d) {
    const int64_t od = d * w[0].stride - w[0].pad_begin + k[0] * w[0].dilation;
    if (od < 0 || od >= w[0].out) continue;
    for (int64_t h = 0; h < w[1].in; ++h) {
      const int64_t oh = h * w[1].stride - w[1].pad_begin + k[1] * w[1].dilation;
      if (oh < 0 || oh >= w[1].out) continue;
      const T* row = x + (d * w[1].in + h) * w[2].in;
      T* out = y + (od * w[1].out + oh) * w[2].out;
      for (int64_t i = 0; i < w[2].in; ++i) {
        const int64_t ow = i * w[2].stride - w[2].pad_begin + k[2] * w[2].dilation;
        if (ow >= 0 && ow < w[2].out) out[ow] += factor * row[i];
      }
    }
  }
}

/// Computes result plane `task`, counted over images and channels. Weights are [c, oc / group, kernel].
template <class T>
void transpose_plane(const TransposePlan& p, const T* x, const T* w, int64_t task, T* y) {
  const int64_t n = task / p.out_channels, o = task % p.out_channels;
  const int64_t group_in = p.in_channels / p.group, group_out = p.out_channels / p.group;
  const int64_t group = o / group_out;
  for (int64_t c = group * group_in; c < (group + 1) * group_in; ++c) {
    const T* plane = x + (n * p.in_channels + c) * p.window.in_points();
    const T* taps = w + (c * group_out + o % group_out) * p.window.kernel_points();
    std::array<int64_t, 3> k{};
    for (k[0] = 0; k[0] < p.window[0].kernel; ++k[0]) {
      for (k[1] = 0; k[1] < p.window[1].kernel; ++k[1]) {
        for (k[2] = 0; k[2] < p.window[2].kernel; ++k[2]) scatter_tap(p.window, k, plane, *taps++, y);
      }
    }
  }
}

ir::BoundKernel prepare_transpose_reference(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0), w = init.node.in_dims(1);
  const int64_t group = init.node.attrs.get_int("group", 1);
  const TransposePlan plan{
      transpose_window(init.node.attrs, {w.begin() + 2, w.end()}, {x.begin() + 2, x.end()}), x[0], x[1],
      w[1] * group, group};
  const bool biased = init.node.present(2);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan, biased](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(plan.batch * plan.out_channels, [&](int64_t task) {
        const int64_t o = task % plan.out_channels;
        T* y = out_ptr<T>(args, 0) + task * plan.window.out_points();
        std::fill_n(y, plan.window.out_points(), biased ? in_ptr<T>(args, 2)[o] : T(0));
        transpose_plane<T>(plan, in_ptr<T>(args, 0), in_ptr<T>(args, 1), task, y);
      });
    }};
  });
}

struct DeformPlan {
  Window window;
  int64_t batch, channels, out_channels, group, offset_group;
  int64_t taps() const { return window.kernel_points(); }
};

/// Bilinear sample of a [height, width] plane; points a pixel or more beyond the border give 0.
template <class T>
T bilinear(const T* plane, int64_t height, int64_t width, T y, T x) {
  // NaN counts as outside.
  if (!(y > -1 && y < static_cast<T>(height) && x > -1 && x < static_cast<T>(width))) return 0;
  const int64_t y0 = static_cast<int64_t>(std::floor(y)), x0 = static_cast<int64_t>(std::floor(x));
  const T fy = y - static_cast<T>(y0), fx = x - static_cast<T>(x0);
  auto at = [&](int64_t i, int64_t j) {
    return i < 0 || i >= height || j < 0 || j >= width ? T(0) : plane[i * width + j];
  };
  return (1 - fy) * ((1 - fx) * at(y0, x0) + fx * at(y0, x0 + 1)) +
         fy * ((1 - fx) * at(y0 + 1, x0) + fx * at(y0 + 1, x0 + 1));
}

/// Samples all taps of one result row: column [ow, channels * taps].
template <class T>
void sample_row(const DeformPlan& p, const ir::RunArgs& args, const T* mask, int64_t row, T* columns) {
  const WindowAxis &ah = p.window[1], &aw = p.window[2];
  const int64_t n = row / ah.out, oh = row % ah.out, points = p.window.out_points();
  for (int64_t c = 0; c < p.channels; ++c) {
    const T* plane = in_ptr<T>(args, 0) + (n * p.channels + c) * ah.in * aw.in;
    const int64_t og = n * p.offset_group + c / (p.channels / p.offset_group);
    for (int64_t tap = 0; tap < p.taps(); ++tap) {
      const T* offset = in_ptr<T>(args, 2) + (og * p.taps() + tap) * 2 * points + oh * aw.out;
      const T* scale = mask == nullptr ? nullptr : mask + (og * p.taps() + tap) * points + oh * aw.out;
      const int64_t y0 = oh * ah.stride - ah.pad_begin + tap / aw.kernel * ah.dilation;
      for (int64_t ow = 0; ow < aw.out; ++ow) {
        const int64_t x0 = ow * aw.stride - aw.pad_begin + tap % aw.kernel * aw.dilation;
        const T v = bilinear(plane, ah.in, aw.in, static_cast<T>(y0) + offset[ow],
                             static_cast<T>(x0) + offset[points + ow]);
        columns[(ow * p.channels + c) * p.taps() + tap] = scale == nullptr ? v : v * scale[ow];
      }
    }
  }
}

template <class T>
void deform_row(const DeformPlan& p, const ir::RunArgs& args, const T* bias, int64_t row, const T* columns) {
  const int64_t n = row / p.window[1].out, oh = row % p.window[1].out, width = p.window[2].out;
  const int64_t group_out = p.out_channels / p.group, k = p.channels / p.group * p.taps();
  for (int64_t o = 0; o < p.out_channels; ++o) {
    const T* w = in_ptr<T>(args, 1) + o * k;
    T* y = out_ptr<T>(args, 0) + ((n * p.out_channels + o) * p.window[1].out + oh) * width;
    for (int64_t ow = 0; ow < width; ++ow) {
      const T* x = columns + ow * p.channels * p.taps() + o / group_out * k;
      T sum = bias == nullptr ? T(0) : bias[o];
      for (int64_t i = 0; i < k; ++i) sum += w[i] * x[i];
      y[ow] = sum;
    }
  }
}

ir::Refusal refuse_deform(const ir::NodeView& node) {
  if (node.in[0].shape.rank() != 4) return "only two spatial axes";
  return refuse_non_float(node);
}

ir::BoundKernel prepare_deform(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const Dims x = node.in_dims(0), w = node.in_dims(1);
  const DeformPlan plan{make_window(node.attrs, {w.begin() + 2, w.end()}, {x.begin() + 2, x.end()}),
                        x[0],
                        x[1],
                        w[0],
                        node.attrs.get_int("group", 1),
                        node.attrs.get_int("offset_group", 1)};
  const size_t count = node.in.size();
  const int64_t row_values = plan.window[2].out * plan.channels * plan.taps();
  return visit_float(node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    auto run = [plan, count, row_values](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(plan.batch * plan.window[1].out, [&](int64_t row) {
        T* columns = static_cast<T*>(args.workspace) + row * row_values;
        sample_row<T>(plan, args, opt_ptr<T>(args, 4, count), row, columns);
        deform_row<T>(plan, args, opt_ptr<T>(args, 3, count), row, columns);
      });
    };
    return ir::BoundKernel{run,
                           plan.batch * plan.window[1].out * row_values * static_cast<int64_t>(sizeof(T))};
  });
}

}  // namespace

std::vector<ir::Kernel> conv_transpose_cpu_kernels() {
  return faster({conv_transpose_phases()}, float_reference(prepare_transpose_reference));
}

std::vector<ir::Kernel> deform_conv_cpu_kernels() {
  const ir::Kernel plain{
      .name = "reference", .is_reference = true, .refuse = refuse_deform, .prepare = prepare_deform};
  return {plain, via_f32(plain)};
}

}  // namespace trireme::ops
