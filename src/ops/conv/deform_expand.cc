// deform_conv in simpler ops: bilinear samples at displaced taps, then one matrix product per group.
#include "ops/conv/deform_expand.h"

#include "ops/conv/window.h"

namespace trireme::ops {
namespace {

/// Extents of one node. Names: n images, c channels, o result channels, points = oh * ow.
struct Deform {
  tensor::Dims x, w;
  Window window;
  int64_t groups, offset_groups, taps, oh, ow;
  int64_t lanes() const { return x[0] * offset_groups; }  // images times offset groups
};

Deform extents_of(GradBuilder& g) {
  Deform d{.x = g.dims(g.in(0)), .w = g.dims(g.in(1)), .window = {}};
  d.window = make_window(g.attrs(), {d.w.begin() + 2, d.w.end()}, {d.x.begin() + 2, d.x.end()});
  d.groups = g.attrs().get_int("group", 1);
  d.offset_groups = g.attrs().get_int("offset_group", 1);
  d.taps = d.window.kernel_points();
  d.oh = d.window[1].out;
  d.ow = d.window[2].out;
  return d;
}

/// Positions of the taps before displacement: [1, taps, oh, ow] along the axis (1: rows, 2: columns).
ValueId unmoved(GradBuilder& g, const Deform& d, size_t axis) {
  const WindowAxis& a = d.window[axis];
  tensor::Tensor t = tensor::Tensor::empty(g.type(g.in(0)).dtype, {1, d.taps, d.oh, d.ow});
  tensor::visit_dtype(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    int64_t i = 0;
    for (T& v : t.mutable_data<T>()) {
      const int64_t tap = i / (d.oh * d.ow), at = axis == 1 ? i / d.ow % d.oh : i % d.ow;
      const int64_t k = axis == 1 ? tap / d.window[2].kernel : tap % d.window[2].kernel;
      v = static_cast<T>(static_cast<float>(at * a.stride - a.pad_begin + k * a.dilation));
      ++i;
    }
  });
  return g.constant(t);
}

/// Coordinates of all samples along the axis, in the range [-1, 1] that grid_sample uses for whole pixels:
/// [lanes, taps, oh, ow, 1].
ValueId coordinates(GradBuilder& g, const Deform& d, ValueId offsets, size_t axis) {
  const int64_t part = axis == 1 ? 0 : 1;
  const ValueId moved = g.op("slice", {offsets, g.ints({part}), g.ints({part + 1}), g.ints({2})});
  const ValueId pixels = g.add(g.reshape(moved, {d.lanes(), d.taps, d.oh, d.ow}), unmoved(g, d, axis));
  const double extent = static_cast<double>(d.window[axis].in);
  return g.reshape(g.plus(g.scaled(pixels, 2 / extent), 1 / extent - 1), {d.lanes(), d.taps, d.oh, d.ow, 1});
}

/// The sampled and scaled columns: [n, groups, c / groups * taps, points].
ValueId columns_of(GradBuilder& g, const Deform& d) {
  const ValueId offsets = g.reshape(g.in(2), {d.lanes(), d.taps, 2, d.oh, d.ow});
  const ValueId both =
      g.op("concat", {coordinates(g, d, offsets, 2), coordinates(g, d, offsets, 1)}, {{"axis", int64_t{4}}});
  const ValueId grid = g.reshape(both, {d.lanes(), d.taps * d.oh, d.ow, 2});
  const int64_t channels = d.x[1] / d.offset_groups;
  const ValueId x = g.reshape(g.in(0), {d.lanes(), channels, d.x[2], d.x[3]});
  ValueId samples = g.op("grid_sample", {x, grid});
  if (g.has(4)) samples = g.mul(samples, g.reshape(g.in(4), {d.lanes(), 1, d.taps * d.oh, d.ow}));
  return g.reshape(samples, {d.x[0], d.groups, d.x[1] / d.groups * d.taps, d.oh * d.ow});
}

}  // namespace

std::vector<ValueId> expand_deform_conv(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  GradBuilder g(graph, node, {});
  const Deform d = extents_of(g);
  const int64_t o = d.w[0];
  const ValueId w = g.reshape(g.in(1), {d.groups, o / d.groups, d.x[1] / d.groups * d.taps});
  ValueId y = g.reshape(g.op("matmul", {w, columns_of(g, d)}), {d.x[0], o, d.oh, d.ow});
  if (g.has(3)) y = g.add(y, g.reshape(g.in(3), {1, o, 1, 1}));
  return {y};
}

}  // namespace trireme::ops
