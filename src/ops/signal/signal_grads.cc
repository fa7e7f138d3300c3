// Gradient rules of dft and stft: transforms are linear, so their gradients are the conjugate transforms.
#include "ops/signal/signal_ops.h"

namespace trireme::ops {
namespace {

/// v, cut or zero-padded to `extent` along `axis`.
ValueId fit(GradBuilder& g, ValueId v, size_t axis, int64_t extent) {
  const tensor::Dims dims = g.dims(v);
  if (dims[axis] == extent) return v;
  const ValueId along = g.ints({static_cast<int64_t>(axis)});
  if (dims[axis] > extent) return g.op("slice", {v, g.ints({0}), g.ints({extent}), along});
  return g.op("pad", {v, g.ints({0, extent - dims[axis]}), ir::kNoValue, along});
}

ValueId number(GradBuilder& g, int64_t v) { return g.constant(tensor::Tensor::scalar(v)); }

/// The transform of length n along axis; the inverse is not divided by n. Real v count as complex.
ValueId transform(GradBuilder& g, ValueId v, size_t axis, int64_t n, bool inverse) {
  const ir::Attrs attrs{{"inverse", int64_t{inverse}}};
  const ValueId y = g.op("dft", {v, number(g, n), number(g, static_cast<int64_t>(axis))}, attrs);
  return inverse ? g.scaled(y, static_cast<double>(n)) : y;
}

/// Keeps only the real part if the operand is real.
ValueId parts_of(GradBuilder& g, ValueId v, int64_t parts) { return fit(g, v, g.dims(v).size() - 1, parts); }

/// Weights of the bins of a half spectrum: inner bins also stand for their mirror images.
ValueId mirror_weights(GradBuilder& g, size_t rank, size_t axis, int64_t n) {
  tensor::Dims dims(rank, 1);
  dims[axis] = n / 2 + 1;
  tensor::Tensor t = tensor::Tensor::empty(g.type(g.in(0)).dtype, dims);
  tensor::visit_dtype(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    int64_t k = 0;
    for (T& w : t.mutable_data<T>()) {
      w = static_cast<T>(k >= 1 && k < n - n / 2 ? 2.0f : 1.0f);
      ++k;
    }
  });
  return g.constant(t);
}

}  // namespace

Gradients dft_rule(GradBuilder& g) {
  Gradients out = g.none();
  const tensor::Dims x = g.dims(g.in(0)), y = g.dims(g.grad());
  const size_t axis = ir::normal_axis(
      g.known(2) != nullptr ? g.known(2)->to_ints().at(0) : g.attrs().get_int("axis", -2), x.size());
  const bool inverse = g.attrs().get_int("inverse", 0) != 0, half = g.attrs().get_int("onesided", 0) != 0;
  const int64_t n = g.known(1) != nullptr ? g.known(1)->to_ints().at(0) : half && inverse ? y[axis] : x[axis];
  ValueId dx;
  if (!inverse) {
    dx = transform(g, half ? fit(g, g.grad(), axis, n) : g.grad(), axis, n, true);
  } else {
    dx = g.scaled(transform(g, g.grad(), axis, n, false), 1.0 / static_cast<double>(n));
    if (half) dx = g.mul(fit(g, dx, axis, n / 2 + 1), mirror_weights(g, x.size(), axis, n));
  }
  out[0] = parts_of(g, fit(g, dx, axis, x[axis]), x.back());
  return out;
}

/// Frames are gathered from the signal, so their gradients are summed where frames overlap.
Gradients stft_rule(GradBuilder& g) {
  Gradients out = g.none();
  const tensor::Dims x = g.dims(g.in(0)), y = g.dims(g.grad());  // y [batch, frames, bins, 2]
  const int64_t parts = x.size() > 2 ? x[2] : 1, frames = y[1];
  const int64_t step = g.known(1)->to_ints().at(0), window = g.has(2) ? g.dims(g.in(2))[0] : 0;
  const int64_t n = g.known(3) != nullptr ? g.known(3)->to_ints().at(0) : window;
  std::vector<int64_t> at;
  for (int64_t i = 0; i < frames * n; ++i) at.push_back(i / n * step + i % n);
  const ValueId indices = g.ints(at);
  // Gradient of the windowed frames [batch, frames, n, parts].
  ValueId d = parts_of(g, transform(g, fit(g, g.grad(), 2, n), 2, n, true), parts);
  if (g.has(2)) {
    const ValueId signal = g.reshape(g.in(0), {x[0], x[1], parts});
    const ValueId framed =
        g.reshape(g.op("gather", {signal, indices}, {{"axis", int64_t{1}}}), {x[0], frames, n, parts});
    // A window shorter than the frame is centred in it.
    const int64_t margin = (n - window) / 2;
    const ValueId sums = g.reshape(g.reduce_to(g.mul(d, framed), {n, 1}), {n});
    out[2] = g.op("slice", {sums, g.ints({margin}), g.ints({margin + window})});
    const ValueId wide = g.op("pad", {g.in(2), g.ints({margin, n - window - margin})});
    d = g.mul(d, g.reshape(wide, {n, 1}));
  }
  const ir::Attrs attrs{{"axis", int64_t{1}}, {"shape", tensor::Dims{x[0], x[1], parts}}};
  out[0] = g.reshape(g.op("gather_grad", {g.reshape(d, {x[0], frames * n, parts}), indices}, attrs), x);
  return out;
}

}  // namespace trireme::ops
