// conv_transpose over one to three spatial axes: x and y are copied to and from channels-last layout, and
// each phase of the stride is a product with packed weights.
#include "ops/conv/conv_kernels_cpu.h"

#include <array>
#include <memory>
#include <vector>

#include "backend/cpu/conv/conv_grad_x.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/move/transpose_copy.h"
#include "ops/conv/conv_shape_cpu.h"
#include "ops/conv/transpose_window.h"
#include "ops/kernel_forms.h"
#include "ops/pack_memory.h"

namespace trireme::ops {
namespace {

/// A transposed convolution over one to three spatial axes, x [n, c, d, h, w] where absent axes have extent
/// 1. One slice in depth is computed as the gradient towards the input of the convolution `slice`, whose
/// input channels are those of the result.
struct Transposed {
  WindowAxis depth;
  cpu::ConvShape slice;
  int64_t batch = 1, h = 1, w = 1;  // extents of x

  /// Without a window in depth, slices are treated as images of a batch.
  bool is_flat() const {
    return depth.kernel == 1 && depth.stride == 1 && depth.pad_begin == 0 && depth.out == depth.in;
  }
  int64_t x_slice() const { return slice.oc * h * w; }
  int64_t y_slice() const { return slice.c * slice.h * slice.w; }
  /// Bytes of the packed weights of one tap in depth.
  int64_t tap_bytes() const { return align_up(static_cast<int64_t>(cpu::packed_phases_bytes(slice))); }
};

Transposed describe(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0), w = n.in_dims(1);
  const Window window = transpose_window(n.attrs, {w.begin() + 2, w.end()}, {x.begin() + 2, x.end()});
  const WindowAxis &h = window[1], &v = window[2];
  const int64_t group = n.attrs.get_int("group", 1);
  Transposed t{.depth = window[0], .slice = {}, .batch = x[0], .h = h.in, .w = v.in};
  t.slice = conv_shape(window, {.n = 1, .h = 0, .w = 0, .c = w[1] * group}, x[1], group);
  t.slice.h = h.out;
  t.slice.w = v.out;
  if (t.is_flat()) t.slice.n = t.batch * t.depth.in;
  return t;
}

ir::Refusal refuse_phases(const ir::NodeView& n) {
  if (const auto why = refuse_dtype(n, 0, {tensor::DType::f32})) return why;
  if (const auto why = refuse_dtype(n, 1, {tensor::DType::f32})) return why;
  if (const auto why = refuse_empty(n)) return why;
  if (n.present(2) && n.in[2].dtype != tensor::DType::f32) return "bias is not f32";
  const Transposed t = describe(n);
  const cpu::ConvShape& s = t.slice;
  if (n.present(2) && n.in[2].shape.elements() != s.c) return "bias does not fit the result";
  if (s.pad_top < 0 || s.pad_left < 0 || s.pad_bottom < 0 || s.pad_right < 0) return "padding is negative";
  const tensor::Dims y = n.out_dims(0);
  if (s.out_h() != t.h || s.out_w() != t.w || y[1] != s.c ||
      tensor::element_count(y) != t.batch * t.depth.out * t.y_slice())
    return "result extends past what x reaches";
  if (!cpu::conv_grad_x_phases_fits(s))
    return "dilated, padding exceeds the kernel, above 256 taps, or of very many phases";
  return std::nullopt;
}

struct PackedTaps {
  PackMemory memory;
};

/// Floats of the weights of one tap in depth.
int64_t tap_floats(const Transposed& t) {
  return t.slice.oc * (t.slice.c / t.slice.groups) * t.slice.kh * t.slice.kw;
}

/// Packs the weights w [c, oc / group, kd, kh, kw] for each tap in depth; `tap` has room for one of them.
void pack_taps(const Transposed& t, const float* w, float* tap, char* packed, base::ThreadPool& pool) {
  const int64_t points = int64_t{t.slice.kh} * t.slice.kw, pairs = tap_floats(t) / points;
  for (int64_t k = 0; k < t.depth.kernel; ++k) {
    for (int64_t i = 0; i < pairs; ++i)
      std::copy_n(w + (i * t.depth.kernel + k) * points, points, tap + i * points);
    cpu::pack_phases(t.slice, tap, packed + k * t.tap_bytes(), pool);
  }
}

std::shared_ptr<const PackedTaps> pack(const Transposed& t, const tensor::Tensor& w,
                                       base::SharedCache& packs) {
  const cpu::ConvShape& s = t.slice;
  const std::string format = base::concat("transposed_f32 g", s.groups, " s", s.stride_h, "x", s.stride_w,
                                          " p", s.pad_top, "x", s.pad_left, " y", s.h, "x", s.w);
  const auto slab = pack_slab(packs);
  return pack_once<PackedTaps>(packs, w, format, [&] {
    const PackMemory memory(slab, static_cast<size_t>(t.depth.kernel * t.tap_bytes()));
    std::vector<float> tap(static_cast<size_t>(tap_floats(t)));
    base::ThreadPool alone(1);
    pack_taps(t, w.data<float>().data(), tap.data(), memory.data.get(), alone);
    return std::make_shared<PackedTaps>(PackedTaps{memory});
  });
}

/// Channels-last copies of the operands of one launch, and the memory of the products.
struct Run {
  const float* x;  // [n, d, h, w, c]
  float* y;
  float* other;  // one slice of y
  const float* bias;
  const char* packed;
  const float* weights;  // if they are not packed in advance
  void* products;
};

/// Slices of x, multiplied by one tap in depth, into slices of y; `bias` is added.
struct SliceRun {
  const float* x;
  float* y;
  int64_t tap;
  const float* bias;
};

void run_slice(const Transposed& t, const Run& r, const SliceRun& slice, base::ThreadPool& pool) {
  cpu::ConvGradXArgs a{.shape = t.slice, .dy = slice.x, .dx = slice.y};
  a.packed = r.packed == nullptr ? nullptr : r.packed + slice.tap * t.tap_bytes();
  a.weights = r.packed == nullptr ? r.weights : nullptr;
  a.bias = slice.bias;
  cpu::conv_grad_x_phases(a, r.products, pool);
}

/// Computes slice `d` of image n of the result: sums slices of x over the taps in depth, in order.
void run_depth(const Transposed& t, const Run& r, int64_t n, int64_t d, base::ThreadPool& pool) {
  const int64_t floats = t.y_slice();
  float* y = r.y + (n * t.depth.out + d) * floats;
  bool is_first = true;
  for (int64_t k = 0; k < t.depth.kernel; ++k) {
    const int64_t from = d + t.depth.pad_begin - k * t.depth.dilation;
    if (from < 0 || from % t.depth.stride != 0 || from / t.depth.stride >= t.depth.in) continue;
    const float* x = r.x + (n * t.depth.in + from / t.depth.stride) * t.x_slice();
    run_slice(t, r, {x, is_first ? y : r.other, k, is_first ? r.bias : nullptr}, pool);
    if (!is_first) {
      pool.for_range(floats, 16384, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y[i] += r.other[i];
      });
    }
    is_first = false;
  }
  if (!is_first) return;  // otherwise no tap reaches the slice
  for (int64_t i = 0; i < floats; ++i) y[i] = r.bias == nullptr ? 0.0f : r.bias[i % t.slice.c];
}

void change_layout(const float* from, float* to, const std::array<int64_t, 4>& shape,
                   const std::array<int, 4>& order, base::ThreadPool& pool) {
  cpu::permute({from, to, shape, order, 4}, pool);
}

/// Bytes of the parts of the workspace: channels-last x and y, a slice of y, weights that are fed and have
/// windows in depth (all taps, and one as it is), the products' own.
struct Parts {
  int64_t x, y, other, packed, tap, products;
  int64_t all() const { return x + y + other + packed + tap + products; }
};

Parts parts_of(const Transposed& t, bool is_fed, int threads) {
  const bool packs = is_fed && !t.is_flat();
  return {align_up(t.batch * t.depth.in * t.x_slice() * 4),
          align_up(t.batch * t.depth.out * t.y_slice() * 4),
          t.is_flat() ? 0 : align_up(t.y_slice() * 4),
          packs ? t.depth.kernel * t.tap_bytes() : 0,
          packs ? align_up(tap_floats(t) * 4) : 0,
          static_cast<int64_t>(cpu::conv_grad_x_phases_bytes(t.slice, threads))};
}

ir::BoundKernel prepare_phases(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const Transposed t = describe(n);
  const Parts parts = parts_of(t, n.value(1) == nullptr, init.threads);
  const std::shared_ptr<const PackedTaps> packed = n.value(1) ? pack(t, *n.value(1), init.packs) : nullptr;
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.workspace_bytes = parts.all()};
  if (n.value(1) != nullptr) bound.unread_inputs = 1u << 1;
  if (n.value(1) != nullptr && packed == nullptr) return bound;
  bound.run = [=](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    char* memory = static_cast<char*>(args.workspace);
    float* x = reinterpret_cast<float*>(memory);
    Run r{.x = x,
          .y = reinterpret_cast<float*>(memory + parts.x),
          .other = reinterpret_cast<float*>(memory + parts.x + parts.y),
          .bias = opt_ptr<float>(args, 2, operands),
          .packed = packed ? packed->memory.data.get() : nullptr,
          .weights = packed ? nullptr : in_ptr<float>(args, 1),
          .products = memory + parts.all() - parts.products};
    if (parts.packed > 0) {
      char* taps = memory + parts.x + parts.y + parts.other;
      pack_taps(t, r.weights, reinterpret_cast<float*>(taps + parts.packed), taps, pool);
      r.packed = taps;
    }
    const cpu::ConvShape& s = t.slice;
    change_layout(in_ptr<float>(args, 0), x, {t.batch, s.oc, t.depth.in * t.h, t.w}, {0, 2, 3, 1}, pool);
    if (t.is_flat()) {
      run_slice(t, r, {r.x, r.y, 0, r.bias}, pool);
    } else {
      for (int64_t i = 0; i < t.batch * t.depth.out; ++i)
        run_depth(t, r, i / t.depth.out, i % t.depth.out, pool);
    }
    change_layout(r.y, out_ptr<float>(args, 0), {t.batch, t.depth.out * s.h, s.w, s.c}, {0, 3, 1, 2}, pool);
  };
  return bound;
}

}  // namespace

ir::Kernel conv_transpose_phases() {
  return {.name = "phases", .refuse = refuse_phases, .prepare = prepare_phases};
}

}  // namespace trireme::ops
