// The geometry of sliding windows: padding rules and result extents.
#include "ops/conv/window.h"

#include <algorithm>
#include <numeric>

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Dims;

/// Kernels of windows count in 32 bits.
constexpr int64_t kMost = int64_t{1} << 24;

/// Window parameters of all spatial axes, with default values filled in.
struct Spec {
  std::vector<int64_t> kernel, strides, dilations, pads;
  std::string auto_pad;
  bool ceil = false;
};

std::vector<int64_t> filled(const ir::Attrs& attrs, std::string_view name, size_t size, int64_t value) {
  std::vector<int64_t> list = attrs.get_ints(name);
  if (list.empty()) list.assign(size, value);
  base::require(list.size() == size, name, " has ", list.size(), " entries for ", size, " values");
  return list;
}

Spec spec_of(const ir::Attrs& attrs, std::vector<int64_t> kernel, size_t rank) {
  Spec s{.kernel = attrs.get_ints("kernel_shape", std::move(kernel))};
  base::require(s.kernel.size() == rank, "kernel_shape has ", s.kernel.size(), " entries for ", rank,
                " axes");
  s.strides = filled(attrs, "strides", rank, 1);
  s.dilations = filled(attrs, "dilations", rank, 1);
  s.pads = filled(attrs, "pads", 2 * rank, 0);
  s.auto_pad = attrs.get_string("auto_pad", "NOTSET");
  s.ceil = attrs.get_int("ceil_mode", 0) != 0;
  for (size_t i = 0; i < rank; ++i) {
    base::require(s.kernel[i] > 0 && s.strides[i] > 0 && s.dilations[i] > 0, "window axis ", i,
                  " has kernel, stride or dilation below 1");
    const auto [least_pad, most_pad] = std::minmax(s.pads[i], s.pads[rank + i]);
    base::require(
        std::max({s.kernel[i], s.strides[i], s.dilations[i], most_pad}) < kMost && least_pad > -kMost,
        "window axis ", i, " has kernel, stride, dilation or padding over 2^24");
  }
  return s;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void resolve_same(WindowAxis& axis, bool upper) {
  axis.out = ceil_div(axis.in, axis.stride);
  const int64_t total = std::max<int64_t>(0, (axis.out - 1) * axis.stride + axis.reach() - axis.in);
  base::require(total < kMost, "auto_pad gives a window axis padding over 2^24: ", total);
  axis.pad_begin = upper ? total / 2 : total - total / 2;
  axis.pad_end = total - axis.pad_begin;
}

WindowAxis resolve(const Spec& s, size_t i, int64_t in) {
  WindowAxis axis{.in = in, .kernel = s.kernel[i], .stride = s.strides[i], .dilation = s.dilations[i]};
  if (s.auto_pad == "SAME_UPPER" || s.auto_pad == "SAME_LOWER") {
    resolve_same(axis, s.auto_pad == "SAME_UPPER");
    return axis;
  }
  if (s.auto_pad != "VALID") {
    base::require(s.auto_pad == "NOTSET" || s.auto_pad.empty(), "unknown auto_pad '", s.auto_pad, "'");
    axis.pad_begin = s.pads[i];
    axis.pad_end = s.pads[s.kernel.size() + i];
  }
  const int64_t span = in + axis.pad_begin + axis.pad_end - axis.reach();
  // Rounding up takes a first window that reaches beyond the padded input by less than a stride.
  base::require(s.ceil ? span > -axis.stride : span >= 0, "a window of ", axis.reach(),
                " does not fit a padded extent of ", span + axis.reach());
  axis.out = (s.ceil ? ceil_div(span, axis.stride) : span / axis.stride) + 1;
  // A window that would begin in the padding after the input is left out.
  if (s.ceil && (axis.out - 1) * axis.stride >= in + axis.pad_begin) --axis.out;
  return axis;
}

/// Whether the result has the extent of the input, which may then stay symbolic.
bool keeps_extent(const Spec& s, size_t i) {
  if (s.strides[i] != 1) return false;
  if (s.auto_pad == "SAME_UPPER" || s.auto_pad == "SAME_LOWER") return true;
  const int64_t pad = s.auto_pad == "VALID" ? 0 : s.pads[i] + s.pads[s.kernel.size() + i];
  return pad == (s.kernel[i] - 1) * s.dilations[i];
}

}  // namespace

std::vector<Dim> window_out(const ir::Attrs& attrs, std::vector<int64_t> kernel, const std::vector<Dim>& in) {
  const Spec spec = spec_of(attrs, std::move(kernel), in.size());
  std::vector<Dim> out;
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].is_static()) {
      out.push_back(resolve(spec, i, in[i].value()).out);
    } else {
      out.push_back(keeps_extent(spec, i) ? in[i] : Dim::unknown());
    }
  }
  return out;
}

Window make_window(const ir::Attrs& attrs, std::vector<int64_t> kernel, const Dims& in) {
  if (in.size() > 3) base::fail_unsupported("windows have at most 3 spatial axes, got ", in.size());
  const Spec spec = spec_of(attrs, std::move(kernel), in.size());
  Window w;
  for (size_t i = 0; i < in.size(); ++i) w.axes[3 - in.size() + i] = resolve(spec, i, in[i]);
  return w;
}

TapRange tap_range(const WindowAxis& a, int64_t k) {
  const int64_t shift = k * a.dilation - a.pad_begin;  // input index = o * stride + shift
  const int64_t first = shift >= 0 ? 0 : ceil_div(-shift, a.stride);
  const int64_t last = a.in - shift <= 0 ? 0 : std::min(a.out, ceil_div(a.in - shift, a.stride));
  return {std::min(first, last), last};
}

std::vector<int64_t> channels_last(size_t rank) {
  std::vector<int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin() + 1, perm.begin() + 2, perm.end());
  return perm;
}

std::vector<int64_t> channels_first(size_t rank) {
  std::vector<int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin() + 1, perm.end() - 1, perm.end());
  return perm;
}

ir::Cost conv_cost(const ir::NodeView& node, size_t w) {
  ir::Cost cost;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (node.present(i)) cost.bytes += static_cast<double>(tensor::bytes_of(node.in[i]));
  }
  cost.bytes += static_cast<double>(tensor::bytes_of(node.out[0]));
  const Dims weights = node.in_dims(w);
  double taps = 1;
  for (size_t i = 1; i < weights.size(); ++i) taps *= static_cast<double>(weights[i]);
  cost.flop = 2 * taps * static_cast<double>(node.out[0].shape.elements().value_or(0));
  return cost;
}

std::vector<ir::AttrSpec> window_attrs() {
  return {{"kernel_shape", "ints", "extent of the window on each spatial axis"},
          {"strides", "ints", "step of the window, default 1"},
          {"dilations", "ints", "distance of the taps, default 1"},
          {"pads", "ints", "padding before each axis, then after each axis, default 0"},
          {"auto_pad", "string", "NOTSET, VALID, SAME_UPPER or SAME_LOWER"}};
}

std::vector<ir::AttrSpec> conv_attrs() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  attrs.push_back({"group", "int", "channels fall into this many independent groups"});
  return attrs;
}

bool conv_reads_nchw(const ir::Attrs& attrs) { return attrs.get_string("input_layout", "nhwc") == "nchw"; }

void require_groups(const ir::Attrs& attrs, const Dim& channels, const tensor::Shape& w) {
  const int64_t group = attrs.get_int("group", 1);
  base::require(group >= 1, "group ", group, " is below 1");
  if (channels.is_static() && w[1].is_static()) {
    base::require(channels.value() % group == 0 && w[1].value() == channels.value() / group,
                  "convolution of ", channels.value(), " channels with weights ", w.to_string(), " in ",
                  group, " groups");
  }
  if (w[0].is_static()) {
    base::require(w[0].value() % group == 0, w[0].value(), " output channels in ", group, " groups");
  }
}

tensor::Shape infer_conv_shape(const ir::Attrs& attrs, const tensor::Shape& x, const tensor::Shape& w) {
  if (!x.has_rank() || !w.has_rank()) return tensor::Shape::unknown_rank();
  base::require(x.rank() >= 3 && w.rank() == x.rank(), "convolution of ", x.to_string(), " with weights ",
                w.to_string());
  require_groups(attrs, x[1], w);
  const std::vector<Dim> spatial(x.dims().begin() + 2, x.dims().end());
  std::vector<int64_t> kernel;
  for (size_t i = 2; i < w.rank(); ++i) {
    if (!w[i].is_static() && !attrs.has("kernel_shape")) return tensor::Shape::unknown(x.rank());
    const std::vector<int64_t> given = attrs.get_ints("kernel_shape");
    base::require(given.size() == w.rank() - 2 || (given.empty() && w[i].is_static()), "kernel_shape has ",
                  given.size(), " entries for weights ", w.to_string());
    kernel.push_back(w[i].is_static() ? w[i].value() : given[i - 2]);
    base::require(given.empty() || given[i - 2] == kernel.back(), "kernel_shape contradicts weights ",
                  w.to_string());
  }
  std::vector<Dim> out{x[0], w[0]};
  for (Dim& d : window_out(attrs, kernel, spatial)) out.push_back(std::move(d));
  return tensor::Shape(std::move(out));
}

}  // namespace trireme::ops
