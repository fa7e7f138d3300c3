// Gradients of conv_nhwc over three spatial axes on CPU: each tap in depth is a gradient of slices.
#include <algorithm>
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/conv/conv_grad_forms_cpu.h"
#include "ops/conv/conv_shape_cpu.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

/// A convolution of [n, d, h, w, c]; `slice` is the convolution of one slice [h, w, c].
struct DepthGrad {
  WindowAxis depth;
  cpu::ConvShape slice;
  int64_t batch = 1;

  int64_t in_floats() const { return slice.h * slice.w * slice.c; }
  int64_t out_floats() const { return slice.out_h() * slice.out_w() * slice.oc; }
  int64_t tap_floats() const { return slice.oc * (slice.c / slice.groups) * slice.kh * slice.kw; }
  TapRange range(int64_t k) const { return tap_range(depth, k); }
  /// The convolution of all slices that tap k connects.
  cpu::ConvShape slices(int64_t k) const {
    cpu::ConvShape s = slice;
    s.n = batch * (range(k).last - range(k).first);
    return s;
  }
  int64_t input_slice(int64_t out, int64_t k) const {
    return out * depth.stride - depth.pad_begin + k * depth.dilation;
  }
};

DepthGrad describe(const ir::Attrs& attrs, const Dims& x, const Dims& w) {
  const Window window = make_window(attrs, {w[2], w[3], w[4]}, {x[1], x[2], x[3]});
  DepthGrad grad{.depth = window[0], .batch = x[0]};
  grad.slice = conv_shape(window, {1, x[2], x[3], x[4]}, w[0], attrs.get_int("group", 1));
  return grad;
}

DepthGrad describe_x(const ir::NodeView& n) { return describe(n.attrs, n.out_dims(0), n.in_dims(1)); }
DepthGrad describe_w(const ir::NodeView& n) { return describe(n.attrs, n.in_dims(0), n.out_dims(0)); }

/// The first form that accepts the slices; null if none does.
const ConvGradXForm* form_x(const cpu::ConvShape& s) {
  for (const ConvGradXForm& form : conv_grad_x_forms()) {
    if (!form.refuse(s)) return &form;
  }
  return nullptr;
}

const ConvGradWForm* form_w(const cpu::ConvShape& s) {
  for (const ConvGradWForm& form : conv_grad_w_forms()) {
    if (!form.refuse(s, cpu::ImageLayout::nhwc, false)) return &form;
  }
  return nullptr;
}

constexpr const char* kTwoAxes = "two axes compute it";

ir::Refusal refuse_common(const ir::NodeView& n) {
  if (n.in[0].shape.rank() != 5) return "has no three spatial axes";
  for (size_t i : {size_t{0}, size_t{1}}) {
    if (const auto why = refuse_dtype(n, i, {tensor::DType::f32})) return why;
  }
  if (n.out.size() > 1) return "does not sum dy";
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  return refuse_empty(n);
}

ir::Refusal refuse_slices(const DepthGrad& grad, const Dims& dy) {
  if (dy[0] != grad.batch || dy[1] != grad.depth.out || dy[4] != grad.slice.oc ||
      grad.slice.oc % grad.slice.groups != 0)
    return base::concat("gradients ", tensor::to_string(dy), " do not fit");
  if (grad.depth.pad_begin < 0 || grad.depth.pad_end < 0) return "padding is negative";
  return refuse_conv_shape(grad.slice, {dy[0], dy[2], dy[3], dy[4]});
}

ir::Refusal refuse_x(const ir::NodeView& n) {
  if (const auto why = refuse_common(n)) return why;
  const auto folded = folded_conv(n.attrs, n.out_dims(0), n.in_dims(1), n.in_dims(0));
  if (folded && form_x(folded->shape) != nullptr) return kTwoAxes;
  const DepthGrad grad = describe_x(n);
  if (const auto why = refuse_slices(grad, n.in_dims(0))) return why;
  if (form_x(grad.slice) == nullptr) return "no form takes its slices";
  return std::nullopt;
}

ir::Refusal refuse_w(const ir::NodeView& n) {
  if (const auto why = refuse_common(n)) return why;
  const auto folded = folded_conv(n.attrs, n.in_dims(0), n.out_dims(0), n.in_dims(1));
  if (folded && form_w(folded->shape) != nullptr) return kTwoAxes;
  const DepthGrad grad = describe_w(n);
  if (const auto why = refuse_slices(grad, n.in_dims(1))) return why;
  if (form_w(grad.slice) == nullptr) return "no form takes its slices";
  return std::nullopt;
}

int64_t aligned_floats(int64_t floats) { return (floats + 15) & ~int64_t{15}; }

/// The slices of a tensor [batch, depth, floats] that a tap reads or writes.
struct Slices {
  int64_t depth, floats;
  int64_t first, step, count;  // in each image
  bool is_whole() const { return first == 0 && step == 1 && count == depth; }
};

/// The slices one after the other: in place if they are contiguous, else copied to `to`.
const float* gathered(const float* from, const Slices& s, int64_t batch, float* to, base::ThreadPool& pool) {
  if (s.is_whole()) return from;
  pool.run(batch * s.count, [&](int64_t i) {
    const int64_t at = i / s.count * s.depth + s.first + i % s.count * s.step;
    std::memcpy(to + i * s.floats, from + at * s.floats, static_cast<size_t>(s.floats) * sizeof(float));
  });
  return to;
}

/// Adds the gathered slices to their places in the tensor.
void add_slices(const float* from, const Slices& s, int64_t batch, float* to, base::ThreadPool& pool) {
  pool.run(batch * s.count, [&](int64_t i) {
    const int64_t at = i / s.count * s.depth + s.first + i % s.count * s.step;
    const float* in = from + i * s.floats;
    float* out = to + at * s.floats;
    for (int64_t j = 0; j < s.floats; ++j) out[j] += in[j];
  });
}

Slices x_slices(const DepthGrad& g, int64_t k) {
  const TapRange r = g.range(k);
  return {g.depth.in, g.in_floats(), g.input_slice(r.first, k), g.depth.stride, r.last - r.first};
}

Slices dy_slices(const DepthGrad& g, int64_t k) {
  const TapRange r = g.range(k);
  return {g.depth.out, g.out_floats(), r.first, 1, r.last - r.first};
}

/// Copies weights of tap k in depth: w [oc, c / group, kd, kh, kw] and tap [oc, c / group, kh, kw].
void take_tap(const DepthGrad& g, const float* w, int64_t k, float* tap) {
  const int64_t points = int64_t{g.slice.kh} * g.slice.kw, pairs = g.tap_floats() / points;
  for (int64_t i = 0; i < pairs; ++i)
    std::copy_n(w + (i * g.depth.kernel + k) * points, points, tap + i * points);
}

void put_tap(const DepthGrad& g, const float* tap, int64_t k, float* w) {
  const int64_t points = int64_t{g.slice.kh} * g.slice.kw, pairs = g.tap_floats() / points;
  for (int64_t i = 0; i < pairs; ++i)
    std::copy_n(tap + i * points, points, w + (i * g.depth.kernel + k) * points);
}

/// The taps in depth that reach any slice. One that reaches every slice of x comes first, so that its result
/// can start the sum.
std::vector<int64_t> taps_in_order(const DepthGrad& g) {
  std::vector<int64_t> taps;
  for (int64_t k = 0; k < g.depth.kernel; ++k) {
    if (g.range(k).first < g.range(k).last) taps.push_back(k);
  }
  std::stable_partition(taps.begin(), taps.end(), [&](int64_t k) { return x_slices(g, k).is_whole(); });
  return taps;
}

template <class Bytes>
int64_t most_bytes(const DepthGrad& g, const Bytes& bytes) {
  size_t most = 0;
  for (int64_t k : taps_in_order(g)) most = std::max(most, bytes(g.slices(k)));
  return static_cast<int64_t>(most);
}

ir::BoundKernel prepare_x(const ir::KernelInit& init) {
  const DepthGrad g = describe_x(init.node);
  const ConvGradXForm form = *form_x(g.slice);
  const int64_t tap = aligned_floats(g.tap_floats());
  const int64_t dy_floats = aligned_floats(g.batch * g.depth.out * g.out_floats());
  const int64_t dx_floats = aligned_floats(g.batch * g.depth.in * g.in_floats());
  ir::BoundKernel bound;
  bound.workspace_bytes = (tap + dy_floats + dx_floats) * 4 +
                          most_bytes(g, [&](const cpu::ConvShape& s) { return form.bytes(s, init.threads); });
  bound.run = [=](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    float* weights = static_cast<float*>(args.workspace);
    float *dy = weights + tap, *part = dy + dy_floats, *dx = out_ptr<float>(args, 0);
    const std::vector<int64_t> taps = taps_in_order(g);
    bool is_begun = !taps.empty() && x_slices(g, taps[0]).is_whole();
    if (!is_begun) std::fill_n(dx, g.batch * g.depth.in * g.in_floats(), 0.0f);
    for (size_t t = 0; t < taps.size(); ++t) {
      const int64_t k = taps[t];
      const bool is_first = is_begun && t == 0;
      take_tap(g, in_ptr<float>(args, 1), k, weights);
      const float* from = gathered(in_ptr<float>(args, 0), dy_slices(g, k), g.batch, dy, pool);
      form.run({g.slices(k), from, weights, is_first ? dx : part}, part + dx_floats, pool);
      if (!is_first) add_slices(part, x_slices(g, k), g.batch, dx, pool);
    }
  };
  return bound;
}

ir::BoundKernel prepare_w(const ir::KernelInit& init) {
  const DepthGrad g = describe_w(init.node);
  const ConvGradWForm form = *form_w(g.slice);
  const int64_t tap = aligned_floats(g.tap_floats());
  const int64_t dy_floats = aligned_floats(g.batch * g.depth.out * g.out_floats());
  const int64_t x_floats = aligned_floats(g.batch * g.depth.in * g.in_floats());
  constexpr auto kNhwc = cpu::ImageLayout::nhwc;
  ir::BoundKernel bound;
  bound.workspace_bytes = (tap + dy_floats + x_floats) * 4 + most_bytes(g, [&](const cpu::ConvShape& s) {
                            return form.bytes(s, kNhwc, init.threads);
                          });
  bound.run = [=](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    float* weights = static_cast<float*>(args.workspace);
    float *dy = weights + tap, *x = dy + dy_floats, *dw = out_ptr<float>(args, 0);
    for (int64_t k = 0; k < g.depth.kernel; ++k) {
      if (g.range(k).first >= g.range(k).last) {
        std::fill_n(weights, g.tap_floats(), 0.0f);
      } else {
        const float* from = gathered(in_ptr<float>(args, 0), x_slices(g, k), g.batch, x, pool);
        const float* of = gathered(in_ptr<float>(args, 1), dy_slices(g, k), g.batch, dy, pool);
        form.run({g.slices(k), from, kNhwc, of, weights}, x + x_floats, pool);
      }
      put_tap(g, weights, k, dw);
    }
  };
  return bound;
}

}  // namespace

ir::Kernel conv_depth_grad_x_kernel() {
  return {.name = "depth_taps", .refuse = refuse_x, .prepare = prepare_x};
}

ir::Kernel conv_depth_grad_w_kernel() {
  return {.name = "depth_taps", .refuse = refuse_w, .prepare = prepare_w};
}

}  // namespace trireme::ops
