// dft, stft, mel_weight_matrix and the Hann, Hamming and Blackman windows: schemas.
#include "ops/signal/signal_ops.h"

#include "ops/cut.h"
#include "ops/cut_notation.h"
#include "ops/elementwise/cast.h"
#include "ops/shape/shape_rules.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using Types = std::vector<tensor::TensorType>;

/// The extent given by operand i. Throws invalid_argument if it is negative.
Dim scalar_dim(const NodeView& n, size_t i) {
  if (n.value(i) == nullptr) return Dim::unknown();
  const int64_t extent = n.value(i)->to_ints().at(0);
  base::require(extent >= 0, "operand ", i, " is an extent of ", extent);
  return extent;
}

void require_real(const NodeView& n) {
  base::require(n.in[0].dtype == DType::f32 || n.in[0].dtype == DType::f64 || n.in[0].dtype == DType::f16 ||
                    n.in[0].dtype == DType::bf16,
                "a signal has floating point elements, not ", name_of(n.in[0].dtype));
}

void require_parts(const Shape& x) {
  const Dim& parts = x[x.rank() - 1];
  base::require(!parts.is_static() || parts.value() == 1 || parts.value() == 2,
                "the last axis of a signal is 1 (real) or 2 (complex), got ", x.to_string());
}

/// x [..., extent, ..., 1 or 2] -> [..., bins, ..., 2], or [..., 1] for the inverse of a one-sided spectrum.
Types infer_dft(const NodeView& n) {
  require_real(n);
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return like(n.in[0], x);
  base::require(x.rank() >= 2, "dft takes [..., signal, real or complex]");
  const bool one_sided = n.attrs.get_int("onesided", 0) != 0, inverse = n.attrs.get_int("inverse", 0) != 0;
  DimList out = x.dims();
  out.back() = one_sided && inverse ? 1 : 2;
  if (n.present(2) && n.value(2) == nullptr) return like(n.in[0], Shape::unknown(x.rank()));
  const size_t axis = ir::normal_axis(
      n.value(2) != nullptr ? n.value(2)->to_ints().at(0) : n.attrs.get_int("axis", -2), x.rank());
  base::require(axis + 1 < x.rank(), "dft: the last axis holds real and imaginary parts");
  require_parts(x);
  Dim length = x[axis];
  if (n.present(1)) length = scalar_dim(n, 1);
  if (one_sided && inverse && !n.present(1)) {
    length = x[axis].is_static() ? Dim(2 * (x[axis].value() - 1)) : Dim::unknown();
  }
  base::require(!length.is_static() || (length.value() >= 1 && length.value() < (int64_t{1} << 40)),
                "dft: a length of ", length.to_string());
  if (one_sided && !inverse) length = length.is_static() ? Dim(length.value() / 2 + 1) : Dim::unknown();
  out[axis] = length;
  return like(n.in[0], Shape(std::move(out)));
}

/// signal [batch, samples, 1 or 2] -> [batch, frames, bins, 2].
Types infer_stft(const NodeView& n) {
  require_real(n);
  const Shape& x = n.in[0].shape;
  Dim frames = Dim::unknown(), bins = Dim::unknown(), frame = Dim::unknown();
  base::require(n.present(2) || n.present(3), "stft has neither a window nor a frame length");
  if (x.has_rank()) {
    base::require(x.rank() == 2 || x.rank() == 3, "stft takes [batch, samples, 1 or 2], got ", x.to_string());
    if (x.rank() == 3) require_parts(x);
  }
  if (n.present(2) && n.in[2].shape.has_rank()) frame = n.in[2].shape[0];
  if (n.present(3)) {
    const Dim window = frame;
    frame = scalar_dim(n, 3);
    base::require(!window.is_static() || !frame.is_static() || window.value() <= frame.value(),
                  "stft: a window of ", window.to_string(), " is longer than the frame of ",
                  frame.to_string());
  }
  if (frame.is_static()) {
    bins = n.attrs.get_int("onesided", 1) != 0 ? frame.value() / 2 + 1 : frame.value();
  }
  if (frame.is_static() && n.value(1) != nullptr && x.has_rank() && x[1].is_static()) {
    const int64_t step = n.value(1)->to_ints().at(0);
    base::require(step > 0 && frame.value() > 0 && frame.value() <= x[1].value(), "stft: frames of ",
                  frame.value(), " every ", step, " do not fit ", x[1].value(), " samples");
    frames = (x[1].value() - frame.value()) / step + 1;
  }
  return like(n.in[0], {x.has_rank() ? x[0] : Dim::unknown(), frames, bins, 2});
}

Types infer_mel(const NodeView& n) {
  Dim bins = scalar_dim(n, 1);
  if (bins.is_static()) bins = bins.value() / 2 + 1;
  return {{dtype_from_onnx(n.attrs.get_int("output_datatype", 1)), {bins, scalar_dim(n, 0)}}};
}

Types infer_window(const NodeView& n) {
  return {{dtype_from_onnx(n.attrs.get_int("output_datatype", 1)), {scalar_dim(n, 0)}}};
}

ir::OpDef window(std::string name, std::string onnx, WindowCoefficients c) {
  return {
      {.name = std::move(name),
       .doc = base::concat("w_i = ", c.a0, " - ", c.a1, " cos(2 pi i / m) + ", c.a2,
                           " cos(4 pi i / m), m = size if periodic else size - 1; 1 where m is 0"),
       .why_no_cut = "a window is short",
       .attrs = {{"periodic", "int", "default 1"}, {"output_datatype", "int", "ONNX number, default f32"}},
       .infer = infer_window,
       .why_no_grad = "integer operand",
       .onnx = std::move(onnx)},
      window_cpu_kernels(c)};
}

/// Cuts all dimensions but the transformed one and the parts of a number.
ir::CutRule cut_dft(const NodeView& n) {
  const size_t rank = n.in[0].shape.rank();
  const size_t axis = ir::normal_axis(
      n.value(2) != nullptr ? n.value(2)->to_ints().at(0) : n.attrs.get_int("axis", -2), rank);
  std::string x = cut_letters(rank - 1) + ".";
  x[axis] = '.';
  return {.notation = CutNotation(n).in(0, x).out(0, x).text(), .linear = {1}};
}

/// Signals [batch, length, 1 or 2] -> [batch, frames, bins, 2].
ir::CutRule cut_stft(const NodeView& n) {
  const std::string x = "b" + dots(n.in[0].shape.rank() - 1);
  return {.notation = CutNotation(n).in(0, x).out(0, "b...").text(), .linear = {1}};
}

}  // namespace

std::vector<ir::OpDef> signal_ops() {
  std::vector<ir::OpDef> ops;
  ops.push_back(
      {{.name = "dft",
        .doc = "X_k = sum over t of x_t e^(-2 pi i k t / n) along axis; the inverse divides by n",
        .cut = cut_dft,
        .max_in = 3,
        .attrs = {{"inverse", "int", "default 0"}, {"onesided", "int", "1: only the n/2 + 1 first bins"}},
        .infer = infer_dft,
        .expand = expand_dft,
        .grad = rule(dft_rule),
        .onnx = "DFT"},
       dft_cpu_kernels()});
  ops.push_back({{.name = "stft",
                  .doc = "dft of windowed frames of a signal",
                  .cut = cut_stft,
                  .min_in = 2,
                  .max_in = 4,
                  .attrs = {{"onesided", "int", "default 1"}},
                  .infer = infer_stft,
                  .expand = expand_stft,
                  .grad = rule(stft_rule),
                  .onnx = "STFT"},
                 stft_cpu_kernels()});
  ops.push_back({{.name = "mel_weight_matrix",
                  .doc = "[bins, mel bands]: triangular filters evenly spaced on the mel scale",
                  .why_no_cut = "made once, of settings",
                  .min_in = 5,
                  .max_in = 5,
                  .attrs = {{"output_datatype", "int", "ONNX number, default f32"}},
                  .infer = infer_mel,
                  .why_no_grad = "its operands are settings",
                  .onnx = "MelWeightMatrix"},
                 mel_weight_matrix_cpu_kernels()});
  ops.push_back(window("hann_window", "HannWindow", {0.5, 0.5, 0}));
  // 25/46 as in the ONNX specification, not the rounded 0.54.
  ops.push_back(window("hamming_window", "HammingWindow", {25.0 / 46.0, 21.0 / 46.0, 0}));
  ops.push_back(window("blackman_window", "BlackmanWindow", {0.42, 0.5, 0.08}));
  return ops;
}

}  // namespace trireme::ops
