// dft and stft as products with the matrix of the transform, for devices. An FFT takes fewer operations, but
// at the usual lengths of frames devices are faster with products of whole tiles.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/signal/signal_ops.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kMostElements = int64_t{1} << 24;  // elements of the matrix: 64 MiB

/// Input and output of a transform of `length`; parts: 1 real, 2 real and imaginary.
struct Transform {
  int64_t length = 0, given = 0, bins = 0, parts_in = 1, parts_out = 2;
  bool inverse = false, from_half = false;
};

/// The coefficient with which part `part_in` of sample (or bin) t enters part `part_out` of bin (or sample)
/// k.
double entry(const Transform& f, int64_t t, int64_t part_in, int64_t k, int64_t part_out) {
  // The phase is reduced as an integer, before rounding.
  const double turn =
      2 * std::numbers::pi * static_cast<double>(t * k % f.length) / static_cast<double>(f.length);
  const double c = std::cos(turn), s = f.inverse ? std::sin(turn) : -std::sin(turn);
  double v = part_in == 0 ? (part_out == 0 ? c : s) : (part_out == 0 ? -s : c);
  if (f.inverse) v /= static_cast<double>(f.length);
  if (!f.from_half) return v;
  // The missing half of a real signal's spectrum is the conjugate of the given one.
  if (t > f.length / 2) return 0;
  const bool has_twin = t != 0 && 2 * t != f.length;
  return part_out == 0 ? (has_twin ? 2 * v : v) : 0;
}

/// The matrix [given * parts_in, bins * parts_out] in the type of the products.
Tensor matrix_of(const Transform& f, DType type) {
  std::vector<double> values;
  for (int64_t row = 0; row < f.given * f.parts_in; ++row) {
    for (int64_t column = 0; column < f.bins * f.parts_out; ++column)
      values.push_back(
          entry(f, row / f.parts_in, row % f.parts_in, column / f.parts_out, column % f.parts_out));
  }
  const Dims dims{f.given * f.parts_in, f.bins * f.parts_out};
  if (type == DType::f64) return Tensor::from<double>(dims, std::span<const double>(values));
  const std::vector<float> narrow(values.begin(), values.end());
  return Tensor::from<float>(dims, std::span<const float>(narrow));
}

ValueId widened(GradBuilder& g, ValueId x) {
  const DType type = g.type(x).dtype;
  return type == DType::f64 || type == DType::f32 ? x : g.op("cast", {x}, {{"to", int64_t{1}}});
}
ValueId narrowed(GradBuilder& g, ValueId y, ValueId like) {
  return g.type(y).dtype == g.type(like).dtype ? y : g.op("cast_like", {y, like});
}

/// Multiplies rows [..., given * parts_in] -> [..., bins * parts_out].
ValueId transformed(GradBuilder& g, ValueId rows, const Transform& f) {
  return g.op("matmul", {rows, g.constant(matrix_of(f, g.type(rows).dtype))});
}

bool is_too_long(const Transform& f) {
  return f.given * f.parts_in > kMostElements / std::max<int64_t>(1, f.bins * f.parts_out);
}

/// Repeats the node: transforms too long for a matrix are left to other kernels.
std::vector<ValueId> as_it_was(GradBuilder& g, const ir::Node& node) {
  return g.ops(node.op_name(), node.in, node.attrs, node.out.size());
}

}  // namespace

std::vector<ValueId> expand_dft(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  GradBuilder g(graph, node, {});
  const Dims x = g.dims(g.in(0));
  const Tensor *length = g.known(1), *axis_of = g.known(2);
  const int64_t asked = axis_of != nullptr ? axis_of->to_ints().at(0) : g.attrs().get_int("axis", -2);
  const size_t axis = ir::normal_axis(asked, x.size());
  Transform f{.parts_in = x.back(), .inverse = g.attrs().get_int("inverse", 0) != 0};
  const bool one_sided = g.attrs().get_int("onesided", 0) != 0;
  f.from_half = one_sided && f.inverse;
  f.length = length != nullptr ? length->to_ints().at(0) : f.from_half ? 2 * (x[axis] - 1) : x[axis];
  base::require(f.length >= 1, "dft: a length of ", f.length);
  f.given = std::min(f.length, x[axis]);
  f.bins = one_sided && !f.inverse ? f.length / 2 + 1 : f.length;
  f.parts_out = f.from_half ? 1 : 2;
  if (is_too_long(f)) return as_it_was(g, node);
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d + 1 < x.size(); ++d) {
    if (d != axis) (d < axis ? outer : inner) *= x[d];
  }
  ValueId rows = g.reshape(widened(g, g.in(0)), {outer, x[axis], inner, f.parts_in});
  if (f.given < x[axis]) rows = g.op("slice", {rows, g.ints({0}), g.ints({f.given}), g.ints({1})});
  if (inner > 1) rows = g.transpose(rows, {0, 2, 1, 3});
  ValueId y = transformed(g, g.reshape(rows, {outer * inner, f.given * f.parts_in}), f);
  y = g.reshape(y, {outer, inner, f.bins, f.parts_out});
  if (inner > 1) y = g.transpose(y, {0, 2, 1, 3});
  Dims out = x;
  out[axis] = f.bins;
  out.back() = f.parts_out;
  return {narrowed(g, g.reshape(y, out), g.in(0))};
}

std::vector<ValueId> expand_stft(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;
  GradBuilder g(graph, node, {});
  base::require(g.known(1) != nullptr && (!g.has(3) || g.known(3) != nullptr),
                "stft: its step and its length must be known when it is opened");
  const Dims x = g.dims(g.in(0));
  const int64_t step = g.known(1)->to_ints().at(0), window = g.has(2) ? g.dims(g.in(2))[0] : 0;
  Transform f{.parts_in = x.size() > 2 ? x[2] : 1};
  f.length = f.given = g.known(3) != nullptr ? g.known(3)->to_ints().at(0) : window;
  base::require(window <= f.length, "stft: the window is longer than the frame");
  f.bins = g.attrs().get_int("onesided", 1) != 0 ? f.length / 2 + 1 : f.length;
  const int64_t frames = (x[1] - f.length) / step + 1;
  if (is_too_long(f)) return as_it_was(g, node);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < frames * f.length; ++i) places.push_back(i / f.length * step + i % f.length);
  const ValueId index =
      g.constant(Tensor::from<int64_t>({frames, f.length}, std::span<const int64_t>(places)));
  const ValueId signal = g.reshape(widened(g, g.in(0)), {x[0], x[1], f.parts_in});
  ValueId rows = g.op("gather", {signal, index}, {{"axis", int64_t{1}}});
  if (window > 0) {
    ValueId weight = widened(g, g.in(2));
    // A window shorter than the frame is centred in it.
    const int64_t before = (f.length - window) / 2;
    if (window < f.length) weight = g.op("pad", {weight, g.ints({before, f.length - window - before})});
    rows = g.mul(rows, g.reshape(weight, {f.length, 1}));
  }
  const ValueId y = transformed(g, g.reshape(rows, {x[0] * frames, f.length * f.parts_in}), f);
  return {narrowed(g, g.reshape(y, {x[0], frames, f.bins, 2}), g.in(0))};
}

}  // namespace trireme::ops
