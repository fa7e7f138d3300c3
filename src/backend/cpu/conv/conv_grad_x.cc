// Backward convolutions as forward ones: whole at stride 1, one per phase of the input pixels above.
#include "backend/cpu/conv/conv_grad_x.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/conv/conv_source.h"
#include "backend/cpu/device/round_up.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

// Rows of a phase's product computed before they are interleaved: enough for a team, few enough for the
// cache.
constexpr int64_t kPhaseRows = 8192;
constexpr int64_t kMostPhases = 4096;

/// One axis of a phase: input positions first, first + stride, ... (count of them) read taps rest, rest +
/// stride, ...
struct PhaseAxis {
  int64_t first = 0, count = 0;
  int rest = 0, taps = 0, pad = 0;
};

PhaseAxis phase_axis(int64_t extent, int kernel, int stride, int pad, int rest) {
  PhaseAxis a;
  a.rest = rest;
  a.taps = rest < kernel ? (kernel - rest + stride - 1) / stride : 0;
  // Position stride * j + rest - pad: the first that is not negative.
  const int64_t j = pad > rest ? (pad - rest + stride - 1) / stride : 0;
  a.first = j * stride + rest - pad;
  a.count = a.first < extent ? (extent - 1 - a.first) / stride + 1 : 0;
  a.pad = a.taps - 1 - static_cast<int>(j);
  return a;
}

/// A phase as a convolution of stride 1 over dy.
struct Phase {
  PhaseAxis h, w;
  ConvShape over_dy;
  WeightView view;
  bool empty() const { return h.taps == 0 || w.taps == 0; }
};

Phase phase_of(const ConvShape& s, const float* weights, int rest_h, int rest_w) {
  Phase p;
  p.h = phase_axis(s.h, s.kh, s.stride_h, s.pad_top, rest_h);
  p.w = phase_axis(s.w, s.kw, s.stride_w, s.pad_left, rest_w);
  ConvShape& b = p.over_dy;
  b = {.n = s.n, .h = s.out_h(), .w = s.out_w(), .c = s.oc, .oc = s.c, .kh = p.h.taps, .kw = p.w.taps};
  b.groups = s.groups;
  b.pad_top = p.h.pad;
  b.pad_left = p.w.pad;
  b.pad_bottom = static_cast<int>(p.h.count - b.h + p.h.taps - 1 - p.h.pad);
  b.pad_right = static_cast<int>(p.w.count - b.w + p.w.taps - 1 - p.w.pad);
  p.view = backward_view(s, weights);
  p.view.taps_h = p.h.taps;
  p.view.taps_w = p.w.taps;
  p.view.step_h = -s.stride_h;
  p.view.step_w = -s.stride_w;
  p.view.first_h = rest_h + (p.h.taps - 1) * s.stride_h;
  p.view.first_w = rest_w + (p.w.taps - 1) * s.stride_w;
  return p;
}

bool pads_are_negative(const ConvShape& s) {
  return s.pad_top < 0 || s.pad_left < 0 || s.pad_bottom < 0 || s.pad_right < 0;
}

bool product_fits(const ConvShape& back) {
  return !(conv_wants_padded_copy(back) && pads_are_negative(back));
}

/// Images whose phase rows fit kPhaseRows.
int64_t phase_images(const ConvShape& s) {
  const int64_t points = ((s.h + s.stride_h - 1) / s.stride_h) * ((s.w + s.stride_w - 1) / s.stride_w);
  return std::clamp<int64_t>(kPhaseRows / std::max<int64_t>(points, 1), 1, std::max<int64_t>(s.n, 1));
}

size_t phase_row_bytes(const ConvShape& s) {
  const int64_t points = ((s.h + s.stride_h - 1) / s.stride_h) * ((s.w + s.stride_w - 1) / s.stride_w);
  return align64(static_cast<size_t>(phase_images(s) * points * s.c) * sizeof(float));
}

/// Calls visit(phase) for every phase that has input positions.
template <class Visit>
void for_phases(const ConvShape& s, const float* weights, const Visit& visit) {
  for (int i = 0; i < s.stride_h; ++i) {
    for (int j = 0; j < s.stride_w; ++j) {
      const Phase p = phase_of(s, weights, i, j);
      if (p.h.count > 0 && p.w.count > 0) visit(p);
    }
  }
}

/// The rows of a phase (null: the bias, or zeros) of `images` images, on their way into dx at the first of
/// them.
struct PhaseRows {
  int64_t images;
  const float* rows;
  float* dx;
  const float* bias;  // [c] or null
};

void interleave(const ConvShape& s, const Phase& p, PhaseRows from, base::ThreadPool& pool) {
  const size_t bytes = static_cast<size_t>(s.c) * sizeof(float);
  pool.for_range(from.images * p.h.count, 1 + 16384 / (p.w.count * s.c), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t image = line / p.h.count, h = p.h.first + line % p.h.count * s.stride_h;
      float* out = from.dx + ((image * s.h + h) * s.w + p.w.first) * s.c;
      const float* in = from.rows == nullptr ? nullptr : from.rows + line * p.w.count * s.c;
      for (int64_t i = 0; i < p.w.count; ++i, out += s.stride_w * s.c) {
        const float* pixel = in == nullptr ? from.bias : in + i * s.c;
        pixel == nullptr ? std::memset(out, 0, bytes) : std::memcpy(out, pixel, bytes);
      }
    }
  });
}

}  // namespace

ConvShape backward_shape(const ConvShape& s) {
  ConvShape b = s;
  b.h = s.out_h();
  b.w = s.out_w();
  std::swap(b.c, b.oc);
  b.pad_top = s.dilation_h * (s.kh - 1) - s.pad_top;
  b.pad_left = s.dilation_w * (s.kw - 1) - s.pad_left;
  b.pad_bottom = static_cast<int>(s.h - b.h + s.dilation_h * (s.kh - 1) - b.pad_top);
  b.pad_right = static_cast<int>(s.w - b.w + s.dilation_w * (s.kw - 1) - b.pad_left);
  return b;
}

bool conv_grad_x_direct_fits(const ConvShape& s) {
  return s.stride_h == 1 && s.stride_w == 1 && s.kh * s.kw <= 256 && product_fits(backward_shape(s));
}

size_t conv_grad_x_direct_bytes(const ConvShape& s, int threads) {
  return align64(packed_view_bytes(backward_view(s, nullptr))) +
         conv2d_workspace_bytes(backward_shape(s), ImageLayout::nhwc, threads) + 64;
}

void conv_grad_x_direct(const ConvGradXArgs& a, void* workspace, base::ThreadPool& pool) {
  const WeightView view = backward_view(a.shape, a.weights);
  char* memory = align64(workspace);
  ConvArgs args{.shape = backward_shape(a.shape), .x = a.dy, .y = a.dx, .epilogue = {}};
  args.weights = pack_view(view, memory, pool);
  conv2d_nhwc(args, memory + align64(packed_view_bytes(view)), pool);
}

bool conv_grad_x_winograd_fits(const ConvShape& s) {
  return s.stride_h == 1 && s.stride_w == 1 && winograd_fits(backward_shape(s));
}

size_t conv_grad_x_winograd_bytes(const ConvShape& s, int threads) {
  return align64(winograd_view_bytes(backward_view(s, nullptr), WinogradTile::four)) +
         winograd_workspace_bytes(backward_shape(s), WinogradTile::four, threads) + 64;
}

void conv_grad_x_winograd(const ConvGradXArgs& a, void* workspace, base::ThreadPool& pool) {
  const WeightView view = backward_view(a.shape, a.weights);
  char* memory = align64(workspace);
  WinogradArgs args{.shape = backward_shape(a.shape), .x = a.dy, .y = a.dx, .epilogue = {}};
  args.x_which = a.which;
  args.gate = a.gate;
  args.weights = transform_view(view, WinogradTile::four, memory, pool);
  winograd_nhwc(args, memory + align64(winograd_view_bytes(view, WinogradTile::four)), pool);
}

bool conv_grad_x_has_few_phases(const ConvShape& s) {
  return int64_t{s.stride_h} * s.stride_w <= kMostPhases;
}

bool conv_grad_x_phases_fits(const ConvShape& s) {
  if (!conv_grad_x_has_few_phases(s)) return false;
  if (s.dilation_h != 1 || s.dilation_w != 1 || s.kh * s.kw > 256) return false;
  bool fits = true;
  for_phases(s, nullptr, [&](const Phase& p) { fits &= p.empty() || product_fits(p.over_dy); });
  return fits;
}

void for_backward_parts(const ConvShape& s, const std::function<void(const BackwardPart&)>& visit) {
  for_phases(s, nullptr, [&](const Phase& p) {
    if (!p.empty()) visit({p.over_dy, p.view});
  });
}

size_t conv_grad_x_parts_bytes(
    const ConvShape& s, int threads,
    const std::function<size_t(const ConvShape&, const WeightView&, int threads)>& bytes) {
  size_t most = 0;
  for_backward_parts(s, [&](const BackwardPart& p) {
    // The last images may be fewer, and a product of fewer rows may be cut to need more.
    for (const int64_t images : {phase_images(s), s.n % phase_images(s)}) {
      if (images == 0) continue;
      ConvShape b = p.over_dy;
      b.n = images;
      most = std::max(most, bytes(b, p.view, threads));
    }
  });
  return most + phase_row_bytes(s) + 128;
}

void conv_grad_x_parts(const ConvGradXArgs& a, void* workspace, base::ThreadPool& pool,
                       const std::function<void(const BackwardPart&, void*, base::ThreadPool&)>& run) {
  const ConvShape& s = a.shape;
  float* rows = reinterpret_cast<float*>(align64(workspace));
  char* memory = reinterpret_cast<char*>(rows) + phase_row_bytes(s);
  const int64_t most = phase_images(s), image = s.h * s.w * s.c;
  for_phases(s, a.weights, [&](const Phase& p) {
    if (p.empty()) return interleave(s, p, {s.n, nullptr, a.dx, nullptr}, pool);
    for (int64_t n = 0; n < s.n; n += most) {
      BackwardPart part{p.over_dy, p.view, a.dy + n * p.over_dy.h * p.over_dy.w * s.oc, rows};
      part.over_dy.n = std::min(most, s.n - n);
      run(part, memory, pool);
      interleave(s, p, {part.over_dy.n, rows, a.dx + n * image, nullptr}, pool);
    }
  });
}

size_t conv_grad_x_phases_bytes(const ConvShape& s, int threads) {
  return conv_grad_x_parts_bytes(s, threads, [](const ConvShape& b, const WeightView& view, int team) {
    return align64(packed_view_bytes(view)) + conv2d_workspace_bytes(b, ImageLayout::nhwc, team);
  });
}

size_t packed_phases_bytes(const ConvShape& s) {
  size_t sum = 64;
  for_phases(s, nullptr, [&](const Phase& p) { sum += p.empty() ? 0 : align64(packed_view_bytes(p.view)); });
  return sum;
}

void pack_phases(const ConvShape& s, const float* weights, void* memory, base::ThreadPool& pool) {
  char* to = align64(memory);
  for_phases(s, weights, [&](const Phase& p) {
    if (p.empty()) return;
    pack_view(p.view, to, pool);
    to += align64(packed_view_bytes(p.view));
  });
}

void conv_grad_x_phases(const ConvGradXArgs& a, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  float* rows = reinterpret_cast<float*>(align64(workspace));
  char* memory = reinterpret_cast<char*>(rows) + phase_row_bytes(s);
  const int64_t most = phase_images(s), image = s.h * s.w * s.c;
  char* ahead = a.packed == nullptr ? nullptr : align64(const_cast<void*>(a.packed));  // only read
  for_phases(s, a.weights, [&](const Phase& p) {
    if (p.empty()) return interleave(s, p, {s.n, nullptr, a.dx, a.bias}, pool);
    ConvArgs args{.shape = p.over_dy, .y = rows, .epilogue = {}};
    args.epilogue.bias = a.bias;
    const size_t bytes = align64(packed_view_bytes(p.view));
    if (ahead == nullptr) {
      args.weights = pack_view(p.view, memory, pool);
    } else {
      args.weights = packed_view(p.view, ahead);
      ahead += bytes;
    }
    for (int64_t n = 0; n < s.n; n += most) {
      args.shape.n = std::min(most, s.n - n);
      args.x = a.dy + n * p.over_dy.h * p.over_dy.w * s.oc;
      conv2d_nhwc(args, memory + bytes, pool);
      interleave(s, p, {args.shape.n, rows, a.dx + n * image, a.bias}, pool);
    }
  });
}

}  // namespace trireme::cpu
