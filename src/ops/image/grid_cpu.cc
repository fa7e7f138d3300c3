// Reference kernels of grid_sample and affine_grid on CPU, for one to three spatial axes.
#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/move/gather_points.h"
#include "ops/image/image_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

enum class Padding : uint8_t { zeros, border, reflection };
enum class Interpolation : uint8_t { nearest, linear, cubic };

struct GridPlan {
  int64_t batch, channels, in_points, out_points;
  size_t axes;
  std::array<int64_t, 3> in{1, 1, 1};  // spatial extents of x
  Padding padding;
  Interpolation mode;
  bool align;
};

GridPlan plan_grid(const ir::NodeView& node) {
  const Dims x = node.in_dims(0), y = node.out_dims(0);
  if (x.size() > 5) base::fail_unsupported("grid_sample has at most 3 spatial axes, got ", x.size() - 2);
  GridPlan p{.batch = x[0],
             .channels = x[1],
             .in_points = product(x, 2, x.size()),
             .out_points = product(y, 2, y.size()),
             .axes = x.size() - 2};
  std::copy(x.begin() + 2, x.end(), p.in.begin());
  const std::string mode = node.attrs.get_string("mode", "linear"),
                    pad = node.attrs.get_string("padding_mode", "zeros");
  base::require(
      mode == "linear" || mode == "bilinear" || mode == "nearest" || mode == "cubic" || mode == "bicubic",
      "unknown grid_sample mode '", mode, "'");
  base::require(pad == "zeros" || pad == "border" || pad == "reflection", "unknown padding_mode '", pad, "'");
  p.mode = mode == "nearest"                      ? Interpolation::nearest
           : mode == "cubic" || mode == "bicubic" ? Interpolation::cubic
                                                  : Interpolation::linear;
  p.padding = pad == "zeros" ? Padding::zeros : pad == "border" ? Padding::border : Padding::reflection;
  p.align = node.attrs.get_int("align_corners", 0) != 0;
  return p;
}

/// Reflects x at the borders until it lies in [lo, hi]; `slope`, if given, is multiplied by 1 or -1.
double reflect(double x, double lo, double hi, double* slope = nullptr) {
  const double range = hi - lo;
  if (range <= 0) return lo;
  const double distance = x < lo ? lo - x : x > hi ? x - hi : -1;
  if (distance < 0) return x;
  const double turns = std::floor(distance / range), rest = distance - turns * range;
  const bool even = std::fmod(turns, 2) == 0;
  if (slope != nullptr && even) *slope = -*slope;
  return (x < lo) == even ? lo + rest : hi - rest;
}

/// Up to four taps of one axis: input index (-1 gives zero), weight, and the weight's derivative by the
/// coordinate in [-1, 1].
struct AxisTaps {
  int count = 0;
  std::array<int64_t, 4> index{};
  std::array<double, 4> weight{}, slope{};
};

double cubic(double x) {
  constexpr double a = -0.75;
  x = std::abs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

double cubic_slope(double x) {
  constexpr double a = -0.75;
  const double d = std::abs(x), sign = x < 0 ? -1 : 1;
  if (d <= 1) return sign * (3 * (a + 2) * d - 2 * (a + 3)) * d;
  return sign * ((3 * a * d - 10 * a) * d + 8 * a);
}

/// The index that position i, inside or outside [0, n), has under the padding mode; -1 gives zero.
int64_t padded_index(const GridPlan& p, double i, int64_t n, double lo, double hi) {
  if (p.padding == Padding::reflection) i = std::trunc(reflect(i, lo, hi));
  if (p.padding == Padding::zeros && (i < 0 || i > double(n - 1))) return -1;
  return static_cast<int64_t>(std::clamp(i, 0.0, double(n - 1)));
}

AxisTaps axis_taps(const GridPlan& p, double normal, int64_t n) {
  const double extent = double(n), lo = p.align ? 0 : -0.5, hi = p.align ? extent - 1 : extent - 0.5;
  double x = p.align ? (normal + 1) / 2 * (extent - 1) : ((normal + 1) * extent - 1) / 2;
  double dx = p.align ? (extent - 1) / 2 : extent / 2;  // derivative by the normalised coordinate
  if (!std::isfinite(x)) x = -1e9;                      // reads padding
  x = static_cast<float>(x);
  if (p.mode == Interpolation::nearest) x = std::nearbyint(x);
  if (x < lo || x > hi) {
    if (p.padding == Padding::reflection) x = reflect(x, lo, hi, &dx);
    if (p.padding == Padding::border) {
      x = std::clamp(x, 0.0, extent - 1);
      dx = 0;
    }
  }
  AxisTaps t;
  const double base =
      p.mode == Interpolation::nearest ? x : std::floor(x) - (p.mode == Interpolation::cubic ? 1 : 0);
  t.count = p.mode == Interpolation::nearest ? 1 : p.mode == Interpolation::linear ? 2 : 4;
  for (int k = 0; k < t.count; ++k) {
    const size_t at = static_cast<size_t>(k);
    const double i = p.mode == Interpolation::nearest ? std::trunc(x) : base + k;
    t.index[at] = padded_index(p, i, n, lo, hi);
    t.weight[at] = t.count == 1 ? 1 : t.count == 2 ? 1 - std::abs(x - i) : cubic(x - i);
    t.slope[at] = dx * (t.count == 1 ? 0.0 : t.count == 2 ? (k == 0 ? -1.0 : 1.0) : cubic_slope(x - i));
  }
  return t;
}

/// Sums over the taps of axes [axis, axes); `at` is the index that the axes before them give.
template <class T>
double sample(const GridPlan& p, const std::array<AxisTaps, 3>& taps, const T* x, size_t axis, int64_t at) {
  if (axis == p.axes) return double(x[at]);
  double sum = 0;
  for (int k = 0; k < taps[axis].count; ++k) {
    const int64_t index = taps[axis].index[static_cast<size_t>(k)];
    if (index >= 0) {
      sum +=
          taps[axis].weight[static_cast<size_t>(k)] * sample(p, taps, x, axis + 1, at * p.in[axis] + index);
    }
  }
  return sum;
}

template <class T, class G>
void sample_point(const GridPlan& p, const ir::RunArgs& args, int64_t point) {
  const int64_t n = point / p.out_points, at = point % p.out_points;
  const G* grid = in_ptr<G>(args, 1) + point * static_cast<int64_t>(p.axes);
  std::array<AxisTaps, 3> taps;
  for (size_t i = 0; i < p.axes; ++i) taps[i] = axis_taps(p, double(grid[p.axes - 1 - i]), p.in[i]);
  for (int64_t c = 0; c < p.channels; ++c) {
    const T* plane = in_ptr<T>(args, 0) + (n * p.channels + c) * p.in_points;
    out_ptr<T>(args, 0)[(n * p.channels + c) * p.out_points + at] =
        static_cast<T>(sample(p, taps, plane, 0, 0));
  }
}

/// For a block of points: up to kMost elements of a plane and their weights, the same in every channel.
struct PointTaps {
  static constexpr int64_t kPoints = 128, kMost = 16;
  int64_t count = 0;                                   // elements per point
  std::array<std::array<int32_t, kPoints>, kMost> at;  // indexed by element, then by point
  std::array<std::array<float, kPoints>, kMost> weight;
};

/// Sets a point's indices and products of weights; -1 for elements in the padding.
void set_point(const GridPlan& p, const std::array<AxisTaps, 3>& taps, size_t point, PointTaps& out) {
  out.count = taps[0].count * taps[1].count;
  size_t n = 0;
  for (int i = 0; i < taps[0].count; ++i) {
    for (int j = 0; j < taps[1].count; ++j, ++n) {
      const int64_t y = taps[0].index[static_cast<size_t>(i)], x = taps[1].index[static_cast<size_t>(j)];
      out.at[n][point] = y < 0 || x < 0 ? -1 : static_cast<int32_t>(y * p.in[1] + x);
      out.weight[n][point] =
          static_cast<float>(taps[0].weight[static_cast<size_t>(i)] * taps[1].weight[static_cast<size_t>(j)]);
    }
  }
}

/// Samples points [begin, begin + count) of image n in all channels.
void sample_block(const GridPlan& p, const ir::RunArgs& args, int64_t n, int64_t begin, int64_t count) {
  PointTaps taps;
  const float* grid = in_ptr<float>(args, 1) + (n * p.out_points + begin) * 2;
  for (int64_t i = 0; i < count; ++i) {
    const std::array<AxisTaps, 3> axes{
        axis_taps(p, double(grid[2 * i + 1]), p.in[0]), axis_taps(p, double(grid[2 * i]), p.in[1]), {}};
    set_point(p, axes, static_cast<size_t>(i), taps);
  }
  for (int64_t c = n * p.channels; c < (n + 1) * p.channels; ++c) {
    cpu::gather_points({.x = in_ptr<float>(args, 0) + c * p.in_points,
                        .y = out_ptr<float>(args, 0) + c * p.out_points + begin,
                        .points = count,
                        .taps = taps.count,
                        .stride = PointTaps::kPoints,
                        .index = taps.at[0].data(),
                        .weight = taps.weight[0].data()});
  }
}

ir::Kernel point_blocks() {
  ir::Kernel k{.name = "point_blocks"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (auto why = refuse_empty(n)) return why;
    for (size_t i = 0; i < 2; ++i)
      if (auto why = refuse_dtype(n, i, {tensor::DType::f32})) return why;
    const Dims x = n.in_dims(0);
    if (x.size() != 4) return "blocks of points are of images";
    if (x[2] * x[3] > INT32_MAX) return "planes are too large";
    return std::nullopt;
  };
  k.prepare = [](const ir::KernelInit& init) -> ir::BoundKernel {
    return {[p = plan_grid(init.node)](const ir::RunArgs& args) {
      const int64_t blocks = (p.out_points + PointTaps::kPoints - 1) / PointTaps::kPoints;
      cpu::pool_of(args.stream).for_range(p.batch * blocks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
          const int64_t first = b % blocks * PointTaps::kPoints;
          sample_block(p, args, b / blocks, first, std::min(PointTaps::kPoints, p.out_points - first));
        }
      });
    }};
  };
  return k;
}

/// Like `sample`, with the derivatives of the weights in place of the weights along axis `by`.
template <class T>
double sample_slope(const GridPlan& p, const std::array<AxisTaps, 3>& taps, const T* x, size_t by) {
  std::array<AxisTaps, 3> moved = taps;
  moved[by].weight = taps[by].slope;
  return sample(p, moved, x, 0, 0);
}

/// Adds d times its weight to each element of a plane that the taps of axes [axis, axes) read.
template <class T>
struct Spread {
  const GridPlan& p;
  const std::array<AxisTaps, 3>& taps;
  T* x;

  void add(size_t axis, int64_t at, double d) const {
    if (axis == p.axes) {
      x[at] = static_cast<T>(double(x[at]) + d);
      return;
    }
    for (int k = 0; k < taps[axis].count; ++k) {
      const int64_t index = taps[axis].index[static_cast<size_t>(k)];
      if (index >= 0) add(axis + 1, at * p.in[axis] + index, d * taps[axis].weight[static_cast<size_t>(k)]);
    }
  }
};

template <class G>
std::array<AxisTaps, 3> point_taps(const GridPlan& p, const G* grid, int64_t point) {
  std::array<AxisTaps, 3> taps;
  const G* at = grid + point * static_cast<int64_t>(p.axes);
  for (size_t i = 0; i < p.axes; ++i) taps[i] = axis_taps(p, double(at[p.axes - 1 - i]), p.in[i]);
  return taps;
}

/// The plan of the forward node, given where the backward node has x and the result.
GridPlan plan_backward(const ir::NodeView& node, const tensor::TensorType& x, const tensor::TensorType& y) {
  ir::NodeView forward = node;
  forward.in[0] = x;
  forward.out = {y};
  return plan_grid(forward);
}

/// Each task is a plane, to which points add in order.
ir::BoundKernel prepare_grad_x(const ir::KernelInit& init) {
  const GridPlan p = plan_backward(init.node, init.node.out[0], init.node.in[0]);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    return visit_float(init.node.in[1].dtype, [&](auto g) {
      return ir::BoundKernel{[p](const ir::RunArgs& args) {
        using T = decltype(t);
        cpu::pool_of(args.stream).for_range(p.batch * p.channels, 1, [&](int64_t begin, int64_t end) {
          for (int64_t plane = begin; plane < end; ++plane) {
            T* dx = out_ptr<T>(args, 0) + plane * p.in_points;
            const T* dy = in_ptr<T>(args, 0) + plane * p.out_points;
            std::fill_n(dx, p.in_points, T(0));
            const int64_t first = plane / p.channels * p.out_points;
            for (int64_t i = 0; i < p.out_points; ++i) {
              const std::array<AxisTaps, 3> taps = point_taps(p, in_ptr<decltype(g)>(args, 1), first + i);
              Spread<T>{p, taps, dx}.add(0, 0, double(dy[i]));
            }
          }
        });
      }};
    });
  });
}

ir::BoundKernel prepare_grad_grid(const ir::KernelInit& init) {
  const GridPlan p = plan_backward(init.node, init.node.in[1], init.node.in[0]);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    return visit_float(init.node.in[2].dtype, [&](auto g) {
      return ir::BoundKernel{[p](const ir::RunArgs& args) {
        using T = decltype(t);
        using G = decltype(g);
        cpu::pool_of(args.stream).for_range(p.batch * p.out_points, 64, [&](int64_t begin, int64_t end) {
          for (int64_t point = begin; point < end; ++point) {
            const std::array<AxisTaps, 3> taps = point_taps(p, in_ptr<G>(args, 2), point);
            const int64_t n = point / p.out_points, at = point % p.out_points;
            G* to = out_ptr<G>(args, 0) + point * static_cast<int64_t>(p.axes);
            for (size_t axis = 0; axis < p.axes; ++axis) {
              double sum = 0;
              for (int64_t c = n * p.channels; c < (n + 1) * p.channels; ++c) {
                sum += double(in_ptr<T>(args, 0)[c * p.out_points + at]) *
                       sample_slope(p, taps, in_ptr<T>(args, 1) + c * p.in_points, axis);
              }
              to[p.axes - 1 - axis] = static_cast<G>(sum);
            }
          }
        });
      }};
    });
  });
}

ir::BoundKernel prepare_grid(const ir::KernelInit& init) {
  const GridPlan plan = plan_grid(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    return visit_float(init.node.in[1].dtype, [&](auto g) {
      return ir::BoundKernel{[plan](const ir::RunArgs& args) {
        cpu::pool_of(args.stream)
            .for_range(plan.batch * plan.out_points, 64, [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) sample_point<decltype(t), decltype(g)>(plan, args, i);
            });
      }};
    });
  });
}

/// Coordinate in [-1, 1] of index i of n.
double normal_coordinate(int64_t i, int64_t n, bool align) {
  if (align) return n == 1 ? -1.0 : -1.0 + 2.0 * double(i) / double(n - 1);
  return -1.0 + (2.0 * double(i) + 1) / double(n);
}

ir::BoundKernel prepare_affine(const ir::KernelInit& init) {
  const Dims y = init.node.out_dims(0);
  const size_t axes = y.size() - 2;
  const bool align = init.node.attrs.get_int("align_corners", 0) != 0;
  const int64_t points = product(y, 1, y.size() - 1);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).for_range(y[0] * points, 1024, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          std::array<double, 4> at{1, 1, 1, 1};  // x, y, z, 1; the last axis comes first
          int64_t rest = i % points;
          for (size_t a = 0; a < axes; ++a) {
            const int64_t n = y[axes - a];
            at[a] = normal_coordinate(rest % n, n, align);
            rest /= n;
          }
          at[axes] = 1;
          const T* theta = in_ptr<T>(args, 0) + i / points * static_cast<int64_t>(axes * (axes + 1));
          for (size_t r = 0; r < axes; ++r) {
            double sum = 0;
            for (size_t c = 0; c <= axes; ++c) sum += double(theta[r * (axes + 1) + c]) * at[c];
            out_ptr<T>(args, 0)[i * static_cast<int64_t>(axes) + static_cast<int64_t>(r)] =
                static_cast<T>(sum);
          }
        }
      });
    }};
  });
}

ir::Refusal refuse_grid(const ir::NodeView& node) {
  if (auto why = refuse_dtype(node, 1, {tensor::DType::f32, tensor::DType::f64})) return why;
  return refuse_non_float(node);
}

}  // namespace

std::vector<ir::Kernel> grid_sample_cpu_kernels() {
  const ir::Kernel plain{
      .name = "reference", .is_reference = true, .refuse = refuse_grid, .prepare = prepare_grid};
  return faster({point_blocks()}, {plain, via_f32(plain)});
}

std::vector<ir::Kernel> grid_sample_grad_x_cpu_kernels() {
  const ir::Kernel plain{
      .name = "reference", .is_reference = true, .refuse = refuse_grid, .prepare = prepare_grad_x};
  return {plain, via_f32(plain)};
}

std::vector<ir::Kernel> grid_sample_grad_grid_cpu_kernels() {
  const auto refuse = [](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse_dtype(node, 2, {tensor::DType::f32, tensor::DType::f64})) return why;
    return refuse_non_float(node);
  };
  const ir::Kernel plain{
      .name = "reference", .is_reference = true, .refuse = refuse, .prepare = prepare_grad_grid};
  return {plain, via_f32(plain)};
}

std::vector<ir::Kernel> affine_grid_cpu_kernels() { return float_reference(prepare_affine); }

}  // namespace trireme::ops
