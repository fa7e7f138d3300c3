// Coordinates and weights of resize: ONNX's transformation modes, rounding modes, kernels and antialiasing.
#include "ops/image/resize_plan.h"

#include <algorithm>
#include <cmath>

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::Tensor;

/// The attributes that determine the weights of every axis.
struct Sampling {
  std::string mode, nearest_mode, coordinates;
  double cubic_a = -0.75;
  bool antialias = false, exclude_outside = false;
};

Sampling sampling_of(const ir::Attrs& a, bool is_upsample) {
  Sampling s{.mode = a.get_string("mode", "nearest")};
  s.nearest_mode = is_upsample ? "floor" : a.get_string("nearest_mode", "round_prefer_floor");
  s.coordinates = is_upsample ? "asymmetric" : a.get_string("coordinate_transformation_mode", "half_pixel");
  s.cubic_a = a.get_float("cubic_coeff_a", -0.75);
  s.antialias = a.get_int("antialias", 0) != 0;
  s.exclude_outside = a.get_int("exclude_outside", 0) != 0;
  if (s.mode == "bilinear") s.mode = "linear";  // an older opset's name
  base::require(s.mode == "nearest" || s.mode == "linear" || s.mode == "cubic", "unknown resize mode '",
                s.mode, "'");
  return s;
}

/// One axis: extents, the exact scale, and the region of tf_crop_and_resize.
struct AxisGeometry {
  int64_t in, out;
  double scale, roi_begin = 0, roi_end = 1;
};

/// Input coordinate of output x.
double source_of(const Sampling& s, const AxisGeometry& g, double x) {
  const double in = double(g.in), width = g.scale * in;  // width may be fractional
  if (s.coordinates == "asymmetric") return x / g.scale;
  if (s.coordinates == "tf_half_pixel_for_nn") return (x + 0.5) / g.scale;  // of opsets 11 and 12
  if (s.coordinates == "align_corners") return width == 1 ? 0 : x * (in - 1) / (width - 1);
  // One output reads the first input: so say ONNX's text and ONNX Runtime (its Python reference has -0.5).
  if (s.coordinates == "pytorch_half_pixel") return g.out == 1 ? 0 : (x + 0.5) / g.scale - 0.5;
  if (s.coordinates == "tf_crop_and_resize") {
    const double extent = (g.roi_end - g.roi_begin) * (in - 1);
    return g.roi_begin * (in - 1) + (width == 1 ? extent / 2 : x * extent / (width - 1));
  }
  if (s.coordinates == "half_pixel_symmetric") {
    return in / 2 * (1 - double(g.out) / width) + (x + 0.5) / g.scale - 0.5;
  }
  base::require(s.coordinates == "half_pixel", "unknown coordinate_transformation_mode '", s.coordinates,
                "'");
  return (x + 0.5) / g.scale - 0.5;
}

double nearest_of(const Sampling& s, double x) {
  if (s.nearest_mode == "floor") return std::floor(x);
  if (s.nearest_mode == "ceil") return std::ceil(x);
  if (s.nearest_mode == "round_prefer_ceil") return std::floor(x + 0.5);
  base::require(s.nearest_mode == "round_prefer_floor", "unknown nearest_mode '", s.nearest_mode, "'");
  return std::ceil(x - 0.5);
}

/// Cubic convolution kernel at distance x (Keys 1981, "Cubic convolution interpolation").
double cubic(double x, double a) {
  x = std::abs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

/// Taps around x relative to i0 = ceil(x) - 1: first offset and weights, which antialiasing widens by 1 /
/// scale.
struct Taps {
  int64_t first;
  std::vector<double> weight;
};

Taps taps_of(const Sampling& s, double scale, double ratio) {
  const double reach = s.mode == "cubic" ? 2 : 1;
  const double shrink = s.antialias ? std::min(scale, 1.0) : 1.0;
  Taps t{.first = static_cast<int64_t>(std::floor(-reach / shrink)) + 1, .weight = {}};
  double sum = 0;
  for (int64_t i = t.first; i < 2 - t.first; ++i) {
    const double x = (double(i) - ratio) * shrink;
    t.weight.push_back(s.mode == "cubic" ? cubic(x, s.cubic_a) : std::max(0.0, 1 - std::abs(x)));
    sum += t.weight.back();
  }
  for (double& w : t.weight) w /= sum;
  return t;
}

/// The index nearest to `at` in an image of `extent`; NaN and negative values give the first.
int32_t index_near(double at, int64_t extent) {
  return at > 0 ? static_cast<int32_t>(std::min(at, double(extent - 1))) : 0;
}

/// Appends the taps of one output coordinate; indices are clamped to the image.
void add_taps(const Sampling& s, const AxisGeometry& g, double x, ResizeAxis& axis) {
  const double i0 = std::ceil(x) - 1;
  Taps t = taps_of(s, g.scale, x - i0);
  double kept = 0;
  for (size_t k = 0; k < t.weight.size(); ++k) {
    const double at = i0 + double(t.first) + double(k);
    if (s.exclude_outside && (at < 0 || at >= double(g.in))) t.weight[k] = 0;
    kept += t.weight[k];
    axis.index.push_back(index_near(at, g.in));
  }
  for (double w : t.weight) axis.weight.push_back(static_cast<float>(kept == 0 ? w : w / kept));
  axis.taps = static_cast<int64_t>(t.weight.size());
}

ResizeAxis make_axis(const Sampling& s, size_t axis, const AxisGeometry& g) {
  ResizeAxis a{.axis = axis, .in = g.in, .out = g.out};
  for (int64_t i = 0; i < g.out; ++i) {
    const double x = source_of(s, g, double(i));
    if (s.coordinates == "tf_crop_and_resize") a.outside.push_back(x < 0 || x > double(g.in - 1));
    if (s.mode == "nearest") {
      a.index.push_back(index_near(nearest_of(s, x), g.in));
      a.weight.push_back(1.0f);
    } else {
      add_taps(s, g, x, a);
    }
  }
  return a;
}

/// The axes to which scales, sizes and roi refer.
std::vector<size_t> axes_of(const ir::NodeView& node, size_t rank) {
  std::vector<size_t> axes;
  for (int64_t axis : node.attrs.get_ints("axes")) axes.push_back(ir::normal_axis(axis, rank));
  if (!axes.empty()) return axes;
  for (size_t i = 0; i < rank; ++i) axes.push_back(i);
  return axes;
}

bool has_values(const ir::NodeView& node, size_t i) {
  return node.present(i) && node.value(i) != nullptr && node.value(i)->elements() > 0;
}

/// Sizes with keep_aspect_ratio_policy: all axes get the same scale, the smallest or largest of those asked
/// for.
void apply_sizes(const std::vector<int64_t>& sizes, const std::vector<size_t>& axes, const Dims& in,
                 const std::string& policy, ResizeTarget& target) {
  std::vector<double> wanted;
  for (size_t i = 0; i < axes.size(); ++i) wanted.push_back(double(sizes[i]) / double(in[axes[i]]));
  const bool stretch = policy.empty() || policy == "stretch";
  base::require(stretch || policy == "not_larger" || policy == "not_smaller",
                "unknown keep_aspect_ratio_policy '", policy, "'");
  const double one = policy == "not_larger" ? *std::min_element(wanted.begin(), wanted.end())
                                            : *std::max_element(wanted.begin(), wanted.end());
  for (size_t i = 0; i < axes.size(); ++i) {
    target.scales[axes[i]] = stretch ? wanted[i] : one;
    target.out[axes[i]] =
        stretch ? sizes[i] : static_cast<int64_t>(std::floor(one * double(in[axes[i]]) + 0.5));
  }
}

}  // namespace

double scaled_extent(double scale, int64_t in) {
  return std::floor(static_cast<float>(scale) * static_cast<float>(in));
}

std::optional<ResizeTarget> resize_target(const ir::NodeView& node) {
  const bool is_upsample = node.in.size() == 2 && !node.attrs.has("coordinate_transformation_mode") &&
                           node.in[1].shape.has_rank() && has_values(node, 1);
  const bool by_sizes = has_values(node, 3);
  const size_t scales_at = has_values(node, 2) ? 2 : 1;
  if (!by_sizes && scales_at == 1 && !is_upsample) return std::nullopt;
  const Dims in = node.in_dims(0);
  const std::vector<size_t> axes = axes_of(node, in.size());
  ResizeTarget target{std::vector<double>(in.size(), 1.0), in};
  const Tensor& given = *node.value(by_sizes ? 3 : scales_at);
  base::require(given.elements() == static_cast<int64_t>(axes.size()), "resize has ", given.elements(),
                " scales or sizes for ", axes.size(), " axes");
  for (size_t axis : axes)
    base::require(in[axis] > 0 && in[axis] < (1 << 30), "resize of an axis of ", in[axis], " elements");
  if (by_sizes) {
    for (int64_t size : given.to_ints()) base::require(size > 0 && size < (1 << 30), "resize to ", size);
    apply_sizes(given.to_ints(), axes, in, node.attrs.get_string("keep_aspect_ratio_policy", "stretch"),
                target);
    return target;
  }
  const std::vector<double> scales = given.to_doubles();
  for (size_t i = 0; i < axes.size(); ++i) {
    const double extent = scaled_extent(scales[i], in[axes[i]]);
    base::require(scales[i] > 0 && extent < double(1 << 30), "resize by ", scales[i]);
    target.scales[axes[i]] = scales[i];
    target.out[axes[i]] = static_cast<int64_t>(extent);
  }
  return target;
}

std::vector<bool> kept_axes(const ir::NodeView& node) {
  const size_t rank = node.in[0].shape.rank();
  std::vector<bool> kept(rank, false);
  const std::optional<ResizeTarget> target = resize_target(node);
  if (!target) return kept;
  const Dims in = node.in_dims(0);
  for (size_t axis = 0; axis < rank; ++axis)
    kept[axis] = target->out[axis] == in[axis] && target->scales[axis] == 1;
  if (node.attrs.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize") return kept;
  const std::vector<size_t> axes = axes_of(node, rank);
  const std::vector<double> roi = has_values(node, 1) ? node.value(1)->to_doubles() : std::vector<double>{};
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool is_whole = roi.size() == 2 * axes.size() && roi[i] == 0 && roi[axes.size() + i] == 1;
    kept[axes[i]] = kept[axes[i]] && is_whole;
  }
  return kept;
}

bool sizes_are_extents(const ir::NodeView& node) {
  if (!has_values(node, 3)) return true;
  const std::string policy = node.attrs.get_string("keep_aspect_ratio_policy", "stretch");
  const size_t rank = node.in[0].shape.rank();
  const std::vector<size_t> axes = axes_of(node, rank);
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != rank - axes.size() + i) return false;
  }
  return policy.empty() || policy == "stretch";
}

ResizePlan plan_resize(const ir::NodeView& node, bool is_upsample) {
  const Sampling s = sampling_of(node.attrs, is_upsample);
  const std::optional<ResizeTarget> target = resize_target(node);
  base::require(target.has_value(), "resize needs its scales or sizes when it is compiled");
  const Dims in = node.in_dims(0);
  const std::vector<size_t> axes = axes_of(node, in.size());
  const bool crops = s.coordinates == "tf_crop_and_resize";
  std::vector<double> roi;
  if (crops) {
    base::require(has_values(node, 1), "tf_crop_and_resize needs a constant roi");
    roi = node.value(1)->to_doubles();
    base::require(roi.size() == 2 * axes.size(), "resize roi has ", roi.size(), " values for ", axes.size(),
                  " axes");
  }
  ResizePlan plan{.axes = {},
                  .nearest = s.mode == "nearest",
                  .extrapolation = static_cast<float>(node.attrs.get_float("extrapolation_value", 0))};
  for (size_t axis = 0; axis < in.size(); ++axis) {
    AxisGeometry g{in[axis], target->out[axis], target->scales[axis]};
    const auto at = std::find(axes.begin(), axes.end(), axis);
    if (at == axes.end()) continue;
    if (crops) {
      const size_t i = static_cast<size_t>(at - axes.begin());
      g.roi_begin = roi[i];
      g.roi_end = roi[axes.size() + i];
    }
    const bool is_identity =
        g.in == g.out && g.scale == 1 && (!crops || (g.roi_begin == 0 && g.roi_end == 1));
    if (!is_identity) plan.axes.push_back(make_axis(s, axis, g));
  }
  return plan;
}

}  // namespace trireme::ops
