// Reference kernels of conv, conv_integer and qlinear_conv: one plane of the result per task, taps in a fixed
// order.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/conv/conv_kernels_cpu.h"
#include "ops/conv/window.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

struct ConvPlan {
  Window window;
  int64_t batch, in_channels, out_channels, group;
  int64_t group_in() const { return in_channels / group; }
  int64_t group_out() const { return out_channels / group; }
};

ConvPlan plan_conv(const ir::NodeView& node, size_t weight) {
  const Dims x = node.in_dims(0), w = node.in_dims(weight);
  return {make_window(node.attrs, {w.begin() + 2, w.end()}, {x.begin() + 2, x.end()}), x[0], x[1], w[0],
          node.attrs.get_int("group", 1)};
}

/// The contribution of a tap to an input value x: factor * (x - zero).
template <class A>
struct Affine {
  A factor, zero;
};

/// Operands of one convolution; zero points are subtracted from x and from the weights.
template <class X, class W, class A>
struct ConvOperands {
  const X* x;
  const W* w;
  A x_zero, w_zero;
};

/// Adds; sums of integers wrap around on overflow.
template <class A>
A wrapping_sum(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return static_cast<A>(std::make_unsigned_t<A>(a) + std::make_unsigned_t<A>(b));
  return a + b;
}

/// Adds one tap of one input plane to a result plane: y[p] += factor * (x[p stride + k] - zero).
template <class X, class A>
void add_tap(const Window& w, const std::array<int64_t, 3>& k, const X* x, Affine<A> value, A* y) {
  const auto [factor, zero] = value;
  const TapRange rd = tap_range(w[0], k[0]), rh = tap_range(w[1], k[1]), rw = tap_range(w[2], k[2]);
  const int64_t step = w[2].stride;
  for (int64_t d = rd.first; d < rd.last; ++d) {
    const int64_t id = d * w[0].stride - w[0].pad_begin + k[0] * w[0].dilation;
    for (int64_t h = rh.first; h < rh.last; ++h) {
      const int64_t ih = h * w[1].stride - w[1].pad_begin + k[1] * w[1].dilation;
      const X* row = x + (id * w[1].in + ih) * w[2].in - w[2].pad_begin + k[2] * w[2].dilation;
      A* out = y + (d * w[1].out + h) * w[2].out;
      for (int64_t i = rw.first; i < rw.last; ++i)
        out[i] = wrapping_sum(out[i], factor * (static_cast<A>(row[i * step]) - zero));
    }
  }
}

/// Adds one result plane (image n, channel o) to the content of `y`.
template <class X, class W, class A>
void conv_plane(const ConvPlan& p, const ConvOperands<X, W, A>& in, int64_t n, int64_t o, A* y) {
  const int64_t group = o / p.group_out();
  const std::array<int64_t, 3> size{p.window[0].kernel, p.window[1].kernel, p.window[2].kernel};
  for (int64_t c = 0; c < p.group_in(); ++c) {
    const X* plane = in.x + (n * p.in_channels + group * p.group_in() + c) * p.window.in_points();
    const W* taps = in.w + (o * p.group_in() + c) * p.window.kernel_points();
    std::array<int64_t, 3> k{};
    for (k[0] = 0; k[0] < size[0]; ++k[0]) {
      for (k[1] = 0; k[1] < size[1]; ++k[1]) {
        for (k[2] = 0; k[2] < size[2]; ++k[2]) {
          add_tap<X, A>(p.window, k, plane, {static_cast<A>(*taps++) - in.w_zero, in.x_zero}, y);
        }
      }
    }
  }
}

ir::BoundKernel prepare_conv_reference(const ir::KernelInit& init) {
  const ConvPlan plan = plan_conv(init.node, 1);
  const bool biased = init.node.present(2);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan, biased](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(plan.batch * plan.out_channels, [&](int64_t task) {
        const int64_t n = task / plan.out_channels, o = task % plan.out_channels;
        T* y = out_ptr<T>(args, 0) + task * plan.window.out_points();
        std::fill_n(y, plan.window.out_points(), biased ? in_ptr<T>(args, 2)[o] : T(0));
        conv_plane<T, T, T>(plan, {in_ptr<T>(args, 0), in_ptr<T>(args, 1), T(0), T(0)}, n, o, y);
      });
    }};
  });
}

template <class X, class W>
ir::BoundKernel bind_conv_integer(const ir::NodeView& node) {
  const ConvPlan plan = plan_conv(node, 1);
  const size_t count = node.in.size();
  const bool per_channel = node.present(3) && node.in[3].shape.elements().value_or(1) > 1;
  return {[plan, count, per_channel](const ir::RunArgs& args) {
    const X* x_zero = opt_ptr<X>(args, 2, count);
    const W* w_zero = opt_ptr<W>(args, 3, count);
    cpu::pool_of(args.stream).run(plan.batch * plan.out_channels, [&](int64_t task) {
      const int64_t n = task / plan.out_channels, o = task % plan.out_channels;
      int32_t* y = out_ptr<int32_t>(args, 0) + task * plan.window.out_points();
      std::fill_n(y, plan.window.out_points(), 0);
      const int32_t xz = x_zero == nullptr ? 0 : *x_zero;
      const int32_t wz = w_zero == nullptr ? 0 : w_zero[per_channel ? o : 0];
      conv_plane<X, W, int32_t>(plan, {in_ptr<X>(args, 0), in_ptr<W>(args, 1), xz, wz}, n, o, y);
    });
  }};
}

/// Calls f(x, w) with the C++ types of the 8-bit operands x and w.
template <class F>
decltype(auto) visit_bytes(DType x, DType w, F&& f) {
  if (x == DType::i8) return w == DType::i8 ? f(int8_t{}, int8_t{}) : f(int8_t{}, uint8_t{});
  return w == DType::i8 ? f(uint8_t{}, int8_t{}) : f(uint8_t{}, uint8_t{});
}

ir::BoundKernel prepare_conv_integer(const ir::KernelInit& init) {
  return visit_bytes(init.node.in[0].dtype, init.node.in[1].dtype,
                     [&](auto x, auto w) { return bind_conv_integer<decltype(x), decltype(w)>(init.node); });
}

/// Requantizes one result plane: saturate(round_half_even(acc * scale) + zero).
template <class Y>
void requantize(const int32_t* acc, int64_t n, double scale, Y zero, Y* y) {
  for (int64_t i = 0; i < n; ++i) {
    const double v = std::nearbyint(static_cast<double>(acc[i]) * scale) + zero;
    y[i] = static_cast<Y>(
        std::clamp(v, double(std::numeric_limits<Y>::min()), double(std::numeric_limits<Y>::max())));
  }
}

template <class X, class W, class Y>
ir::BoundKernel bind_qlinear_conv(const ir::NodeView& node) {
  const ConvPlan plan = plan_conv(node, 3);
  const size_t count = node.in.size();
  const bool scale_per_channel = node.in[4].shape.elements().value_or(1) > 1;
  const bool zero_per_channel = node.in[5].shape.elements().value_or(1) > 1;
  const int64_t points = plan.window.out_points();
  auto run = [=](const ir::RunArgs& args) {
    const int32_t* bias = opt_ptr<int32_t>(args, 8, count);
    const float *w_scale = in_ptr<float>(args, 4), y_scale = *in_ptr<float>(args, 6);
    cpu::pool_of(args.stream).run(plan.batch * plan.out_channels, [&](int64_t task) {
      const int64_t n = task / plan.out_channels, o = task % plan.out_channels;
      int32_t* acc = static_cast<int32_t*>(args.workspace) + task * points;
      std::fill_n(acc, points, bias == nullptr ? 0 : bias[o]);
      const int32_t xz = *in_ptr<X>(args, 2), wz = in_ptr<W>(args, 5)[zero_per_channel ? o : 0];
      conv_plane<X, W, int32_t>(plan, {in_ptr<X>(args, 0), in_ptr<W>(args, 3), xz, wz}, n, o, acc);
      const double scale = double(*in_ptr<float>(args, 1)) * w_scale[scale_per_channel ? o : 0] / y_scale;
      requantize<Y>(acc, points, scale, *in_ptr<Y>(args, 7), out_ptr<Y>(args, 0) + task * points);
    });
  };
  return {run, plan.batch * plan.out_channels * points * 4};
}

ir::BoundKernel prepare_qlinear_conv(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  return visit_bytes(node.in[0].dtype, node.in[3].dtype, [&](auto x, auto w) {
    using X = decltype(x);
    using W = decltype(w);
    return node.out[0].dtype == DType::i8 ? bind_qlinear_conv<X, W, int8_t>(node)
                                          : bind_qlinear_conv<X, W, uint8_t>(node);
  });
}

ir::Refusal refuse_not_bytes(const ir::NodeView& node, std::initializer_list<size_t> operands) {
  for (size_t i : operands) {
    if (auto why = refuse_dtype(node, i, {DType::i8, DType::u8})) return why;
  }
  return std::nullopt;
}

}  // namespace

std::vector<ir::Kernel> conv_cpu_kernels() {
  return faster({conv_channels_last()}, float_reference(prepare_conv_reference));
}

std::vector<ir::Kernel> conv_integer_cpu_kernels() {
  std::vector<ir::Kernel> kernels = conv_integer_fast_kernels();
  kernels.push_back({.name = "reference",
                     .is_reference = true,
                     .refuse =
                         [](const ir::NodeView& n) {
                           return refuse_not_bytes(n, {0, 1});
                         },
                     .prepare = prepare_conv_integer});
  return kernels;
}

std::vector<ir::Kernel> qlinear_conv_cpu_kernels() {
  return {{.name = "reference",
           .is_reference = true,
           .refuse =
               [](const ir::NodeView& n) {
                 return refuse_not_bytes(n, {0, 3, 7});
               },
           .prepare = prepare_qlinear_conv}};
}

}  // namespace trireme::ops
