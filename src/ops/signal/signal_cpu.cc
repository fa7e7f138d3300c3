// CPU kernels of dft, stft, mel_weight_matrix and the window functions.
#include <cmath>
#include <numbers>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/shape/strided_copy.h"
#include "ops/signal/fourier.h"
#include "ops/signal/signal_ops.h"

namespace trireme::ops {
namespace {

/// The pieces in which lanes are processed, each with its own scratch; results do not depend on their number.
int64_t pieces_for(int64_t lanes) { return std::min<int64_t>(lanes, 16); }

/// Lanes of a transform: `given` samples (the rest of `length` is zero) and `bins` results; steps count
/// elements.
struct DftPlan {
  int64_t outer = 1, inner = 1;  // extents around the axis, without the parts
  int64_t given = 0, axis_in = 0, length = 0, bins = 0;
  int64_t parts_in = 1, parts_out = 2;  // 1: real; 2: real and imaginary
  bool inverse = false, one_sided = false;
};

template <class T>
void dft_lane(const DftPlan& p, const Fourier& f, const T* x, T* y, Complex* line) {
  const bool from_half = p.one_sided && p.inverse;
  for (int64_t t = 0; t < p.length; ++t) {
    line[t] = 0;
    if (t >= p.given) continue;
    const T* at = x + t * p.inner * p.parts_in;
    line[t] = {static_cast<double>(static_cast<Arithmetic<T>>(at[0])),
               p.parts_in == 2 ? static_cast<double>(static_cast<Arithmetic<T>>(at[1])) : 0};
  }
  // The missing half of a real signal's spectrum is the conjugate of the given one.
  for (int64_t t = p.length / 2 + 1; from_half && t < p.length; ++t) line[t] = std::conj(line[p.length - t]);
  f.run(line, line + p.length, p.inverse);
  const double scale = p.inverse ? 1.0 / static_cast<double>(p.length) : 1.0;
  for (int64_t k = 0; k < p.bins; ++k) {
    T* at = y + k * p.inner * p.parts_out;
    at[0] = static_cast<T>(line[k].real() * scale);
    if (p.parts_out == 2) at[1] = static_cast<T>(line[k].imag() * scale);
  }
}

/// The tables of a length. They take some hundred bytes for each sample, and the length may be a value that a
/// stranger gives, so it is bounded by the operand.
Fourier fourier_of(int64_t length, const ir::NodeView& n) {
  constexpr int64_t kAnyLength = int64_t{1} << 20;
  const int64_t most = kAnyLength + 2 * tensor::element_count(n.in_dims(0));
  if (length > most) {
    base::fail(base::ErrorCode::exhausted, n.name, ": a transform of ", length, " samples for an operand of ",
               tensor::element_count(n.in_dims(0)), " numbers; at most ", most, " are computed");
  }
  return Fourier(length);
}

ir::BoundKernel prepare_dft(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const tensor::Dims x = n.in_dims(0), y = n.out_dims(0);
  const size_t axis = ir::normal_axis(
      n.value(2) != nullptr ? n.value(2)->to_ints().at(0) : n.attrs.get_int("axis", -2), x.size());
  DftPlan p;
  for (size_t d = 0; d + 1 < x.size(); ++d) {
    if (d != axis) (d < axis ? p.outer : p.inner) *= x[d];
  }
  p.inverse = n.attrs.get_int("inverse", 0) != 0;
  p.one_sided = n.attrs.get_int("onesided", 0) != 0;
  p.axis_in = x[axis];
  p.length = n.value(1) != nullptr      ? n.value(1)->to_ints().at(0)
             : p.one_sided && p.inverse ? 2 * (x[axis] - 1)
                                        : x[axis];
  base::require(p.length >= 1, "dft: a length of ", p.length);
  p.given = std::min(p.length, x[axis]);
  p.bins = y[axis];
  p.parts_in = x.back();
  p.parts_out = y.back();
  base::require(p.parts_in == 1 || p.parts_in == 2, "dft: the last axis must be 1 (real) or 2 (complex)");
  const Fourier f = fourier_of(p.length, n);
  const int64_t line = p.length + f.scratch(), lanes = p.outer * p.inner, pieces = pieces_for(lanes);
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>) {
      base::fail_unsupported("dft of integers");
    } else {
      return {[p, f, line, lanes, pieces](const ir::RunArgs& args) {
                cpu::pool_of(args.stream).run(pieces, [&](int64_t piece) {
                  Complex* scratch = static_cast<Complex*>(args.workspace) + piece * line;
                  for (int64_t i = lanes * piece / pieces; i < lanes * (piece + 1) / pieces; ++i) {
                    const int64_t o = i / p.inner, r = i % p.inner;
                    dft_lane(
                        p, f, static_cast<const T*>(args.in[0]) + (o * p.axis_in * p.inner + r) * p.parts_in,
                        static_cast<T*>(args.out[0]) + (o * p.bins * p.inner + r) * p.parts_out, scratch);
                  }
                });
              },
              pieces * line * static_cast<int64_t>(sizeof(Complex))};
    }
  });
}

struct StftPlan {
  int64_t batch, samples, parts, frames, step, length, bins, window;  // window: its extent; 0 if absent
};

template <class T>
void stft_frame(const StftPlan& p, const Fourier& f, const ir::RunArgs& args, int64_t i, Complex* line) {
  const T* x =
      static_cast<const T*>(args.in[0]) + (i / p.frames * p.samples + i % p.frames * p.step) * p.parts;
  // A window shorter than the frame is centred in it.
  const int64_t margin = (p.length - p.window) / 2;
  for (int64_t t = 0; t < p.length; ++t) {
    double weight = 1;
    if (p.window > 0) {
      const int64_t w = t - margin;
      weight = w >= 0 && w < p.window
                   ? static_cast<double>(static_cast<Arithmetic<T>>(static_cast<const T*>(args.in[2])[w]))
                   : 0;
    }
    line[t] = Complex(static_cast<Arithmetic<T>>(x[t * p.parts]),
                      p.parts == 2 ? static_cast<Arithmetic<T>>(x[t * 2 + 1]) : 0) *
              weight;
  }
  f.run(line, line + p.length, false);
  T* y = static_cast<T*>(args.out[0]) + i * p.bins * 2;
  for (int64_t k = 0; k < p.bins; ++k) {
    y[2 * k] = static_cast<T>(line[k].real());
    y[2 * k + 1] = static_cast<T>(line[k].imag());
  }
}

ir::BoundKernel prepare_stft(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const tensor::Dims x = n.in_dims(0), y = n.out_dims(0);
  StftPlan p{x[0], x[1], x.size() > 2 ? x[2] : 1, y[1], n.value(1)->to_ints().at(0), 0, y[2], 0};
  if (n.present(2)) p.window = n.in_dims(2)[0];
  p.length = n.value(3) != nullptr ? n.value(3)->to_ints().at(0) : p.window;
  base::require(p.window <= p.length, "stft: the window is longer than the frame");
  const Fourier f = fourier_of(p.length, n);
  const int64_t line = p.length + f.scratch(), all = p.batch * p.frames, pieces = pieces_for(all);
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>) {
      base::fail_unsupported("stft of integers");
    } else {
      return {[p, f, line, all, pieces](const ir::RunArgs& args) {
                cpu::pool_of(args.stream).run(pieces, [&](int64_t piece) {
                  Complex* scratch = static_cast<Complex*>(args.workspace) + piece * line;
                  for (int64_t i = all * piece / pieces; i < all * (piece + 1) / pieces; ++i) {
                    stft_frame<T>(p, f, args, i, scratch);
                  }
                });
              },
              pieces * line * static_cast<int64_t>(sizeof(Complex))};
    }
  });
}

/// A kernel that writes numbers computed at compile time in the type of the result.
ir::BoundKernel write_values(const ir::NodeView& n, std::vector<double> values) {
  return tensor::visit_dtype(n.out[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[values = std::move(values)](const ir::RunArgs& args) {
      for (size_t i = 0; i < values.size(); ++i) static_cast<T*>(args.out[0])[i] = static_cast<T>(values[i]);
    }};
  });
}

double mel_of(double hertz) { return 2595 * std::log10(1 + hertz / 700); }
double hertz_of(double mel) { return 700 * (std::pow(10, mel / 2595) - 1); }

/// Band edges are rounded down to bins of the spectrum; the rising slope excludes its start, the falling one
/// its end.
ir::BoundKernel prepare_mel(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const int64_t bands = n.out_dims(0)[1], bins = n.out_dims(0)[0];
  const double length = static_cast<double>(n.value(1)->to_ints().at(0)),
               rate = n.value(2)->to_doubles().at(0);
  const double low = mel_of(n.value(3)->to_doubles().at(0)), high = mel_of(n.value(4)->to_doubles().at(0));
  std::vector<int64_t> edges;
  for (int64_t i = 0; i < bands + 2; ++i) {
    const double mel = low + static_cast<double>(i) * ((high - low) / static_cast<double>(bands + 2));
    const double edge = std::floor((length + 1) * hertz_of(mel) / rate);
    base::require(std::abs(edge) < 0x1p52, "mel_weight_matrix has a band edge at bin ", edge);
    edges.push_back(static_cast<int64_t>(edge));
  }
  std::vector<double> weights(static_cast<size_t>(bins * bands), 0);
  for (int64_t m = 0; m < bands; ++m) {
    const int64_t from = edges[static_cast<size_t>(m)], top = edges[static_cast<size_t>(m + 1)];
    const int64_t to = edges[static_cast<size_t>(m + 2)];
    const auto set = [&](int64_t bin, double w) {
      if (bin >= 0 && bin < bins) weights[static_cast<size_t>(bin * bands + m)] = w;
    };
    if (top == from) set(top, 1);
    for (int64_t j = std::max<int64_t>(from, 0); top != from && j <= std::min(top, bins - 1); ++j)
      set(j, static_cast<double>(j - from) / static_cast<double>(top - from));
    for (int64_t j = std::max<int64_t>(top, 0); to != top && j < std::min(to, bins); ++j)
      set(j, static_cast<double>(to - j) / static_cast<double>(to - top));
  }
  return write_values(n, std::move(weights));
}

ir::BoundKernel prepare_window(const ir::NodeView& n, const WindowCoefficients& c) {
  const int64_t size = n.out_dims(0)[0];
  const double period = static_cast<double>(n.attrs.get_int("periodic", 1) != 0 ? size : size - 1);
  std::vector<double> w;
  if (size == 1 && period == 0)
    return write_values(n, {1.0});  // as PyTorch and NumPy: the formula divides by 0
  for (int64_t i = 0; i < size; ++i) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(i) / period;
    w.push_back(c.a0 - c.a1 * std::cos(angle) + c.a2 * std::cos(2 * angle));
  }
  return write_values(n, std::move(w));
}

std::vector<ir::Kernel> reference(std::function<ir::BoundKernel(const ir::KernelInit&)> prepare,
                                  std::vector<size_t> values) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = needs_values(std::move(values));
  k.prepare = std::move(prepare);
  return {k};
}

}  // namespace

std::vector<ir::Kernel> dft_cpu_kernels() { return reference(prepare_dft, {1, 2}); }
std::vector<ir::Kernel> stft_cpu_kernels() { return reference(prepare_stft, {1, 3}); }
std::vector<ir::Kernel> mel_weight_matrix_cpu_kernels() { return reference(prepare_mel, {0, 1, 2, 3, 4}); }
std::vector<ir::Kernel> window_cpu_kernels(WindowCoefficients c) {
  return reference([c](const ir::KernelInit& init) { return prepare_window(init.node, c); }, {0});
}

}  // namespace trireme::ops
