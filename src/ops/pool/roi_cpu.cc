// Reference kernels of max_unpool, max_roi_pool and roi_align on CPU.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/kernel_forms.h"
#include "ops/pool/pool_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

/// Where x[i] goes in the result: its index is decoded with the extents to which it refers and encoded with
/// those of the result.
struct UnpoolPlan {
  int64_t n, out_elements;
  std::array<int64_t, 8> counted{}, result{};
  size_t rank;
};

int64_t recode(const UnpoolPlan& p, int64_t index) {
  int64_t out = 0, stride = 1;
  for (size_t i = p.rank; i-- > 0;) {
    out += index % p.counted[i] * stride;
    stride *= p.result[i];
    index /= p.counted[i];
  }
  return out;
}

ir::BoundKernel prepare_unpool(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0), y = init.node.out_dims(0);
  UnpoolPlan plan{.n = tensor::element_count(x), .out_elements = tensor::element_count(y), .rank = y.size()};
  base::require(y.size() == x.size() && y.size() <= plan.result.size(),
                "max_unpool result rank does not fit");
  std::copy(y.begin(), y.end(), plan.result.begin());
  // If the result is empty nothing is stored, so any extents will do.
  for (size_t i = 0; i < y.size(); ++i) plan.counted[i] = std::max<int64_t>(y[i], 1);
  if (init.node.present(2)) {
    // The indices refer to the smaller tensor that the attributes describe.
    const std::vector<int64_t> kernel = init.node.attrs.get_ints("kernel_shape"),
                               strides = init.node.attrs.get_ints("strides"),
                               pads = init.node.attrs.get_ints("pads");
    for (size_t i = 0; i + 2 < x.size(); ++i) {
      const int64_t pad = pads.empty() ? 0 : pads[i] + pads[x.size() - 2 + i],
                    stride = strides.empty() ? 1 : strides[i];
      plan.counted[i + 2] = std::max<int64_t>(1, (x[i + 2] - 1) * stride + kernel[i] - pad);
    }
  }
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      T* out = out_ptr<T>(args, 0);
      std::fill_n(out, plan.out_elements, T(0));
      const T* values = in_ptr<T>(args, 0);
      const int64_t* indices = in_ptr<int64_t>(args, 1);
      for (int64_t i = 0; i < plan.n; ++i) {
        const int64_t at = indices[i] < 0 ? -1 : recode(plan, indices[i]);
        if (at >= 0 && at < plan.out_elements) out[at] = values[i];
      }
    }};
  });
}

struct RoiPlan {
  int64_t batch, channels, height, width, regions, out_h, out_w;
  double scale;
  int64_t sampling = 0;
  bool half_pixel = true, maximum = false;
};

template <class T>
void max_region(const RoiPlan& p, const T* x, const T* roi, T* y) {
  const int64_t last = p.batch - 1;
  const int64_t image = roi[0] > 0 ? static_cast<int64_t>(std::min<double>(double(roi[0]), double(last))) : 0;
  // Bounds far beyond any image whose differences are still exact; NaN becomes the lower bound.
  constexpr double kFar = 0x1p40;
  auto scaled = [&](T v) {
    const double at = std::round(static_cast<double>(v) * p.scale);
    return static_cast<int64_t>(at > -kFar ? std::min(at, kFar) : -kFar);
  };
  const int64_t x1 = scaled(roi[1]), y1 = scaled(roi[2]), x2 = scaled(roi[3]), y2 = scaled(roi[4]);
  const double cell_h = double(std::max<int64_t>(y2 - y1 + 1, 1)) / double(p.out_h);
  const double cell_w = double(std::max<int64_t>(x2 - x1 + 1, 1)) / double(p.out_w);
  auto low = [](int64_t i, double cell, int64_t start, int64_t limit) {
    return std::clamp<int64_t>(static_cast<int64_t>(std::floor(double(i) * cell)) + start, 0, limit);
  };
  auto high = [](int64_t i, double cell, int64_t start, int64_t limit) {
    return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(double(i + 1) * cell)) + start, 0, limit);
  };
  for (int64_t c = 0; c < p.channels; ++c) {
    const T* plane = x + (image * p.channels + c) * p.height * p.width;
    for (int64_t i = 0; i < p.out_h; ++i) {
      const int64_t h0 = low(i, cell_h, y1, p.height), h1 = high(i, cell_h, y1, p.height);
      for (int64_t j = 0; j < p.out_w; ++j) {
        const int64_t w0 = low(j, cell_w, x1, p.width), w1 = high(j, cell_w, x1, p.width);
        T best = h1 <= h0 || w1 <= w0 ? T(0) : plane[h0 * p.width + w0];
        for (int64_t h = h0; h < h1; ++h) {
          for (int64_t w = w0; w < w1; ++w) best = std::max(best, plane[h * p.width + w]);
        }
        *y++ = best;
      }
    }
  }
}

/// The four weighted corners of one bilinear sample; all weights are 0 more than a pixel outside the plane.
struct Corners {
  int64_t at[4] = {0, 0, 0, 0};
  double weight[4] = {0, 0, 0, 0};
};

Corners corners_of(const RoiPlan& p, double y, double x) {
  Corners c;
  // NaN counts as outside.
  if (!(y >= -1.0 && y <= double(p.height) && x >= -1.0 && x <= double(p.width))) return c;
  y = std::max(y, 0.0);
  x = std::max(x, 0.0);
  int64_t y0 = static_cast<int64_t>(y), x0 = static_cast<int64_t>(x);
  if (y0 >= p.height - 1) y = double(y0 = p.height - 1);
  if (x0 >= p.width - 1) x = double(x0 = p.width - 1);
  const int64_t y1 = std::min(y0 + 1, p.height - 1), x1 = std::min(x0 + 1, p.width - 1);
  const double ly = y - double(y0), lx = x - double(x0);
  const int64_t at[4] = {y0 * p.width + x0, y0 * p.width + x1, y1 * p.width + x0, y1 * p.width + x1};
  const double weight[4] = {(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx};
  std::copy_n(at, 4, c.at);
  std::copy_n(weight, 4, c.weight);
  return c;
}

/// The sampling grid of one region: origin, extent of a cell, samples per cell on each axis.
struct RoiGrid {
  double y0, x0, cell_h, cell_w;
  int64_t samples_h, samples_w;
};

template <class T>
RoiGrid grid_of(const RoiPlan& p, const T* roi) {
  const double shift = p.half_pixel ? 0.5 : 0.0;
  RoiGrid g{.y0 = double(roi[1]) * p.scale - shift, .x0 = double(roi[0]) * p.scale - shift};
  double h = double(roi[3]) * p.scale - shift - g.y0, w = double(roi[2]) * p.scale - shift - g.x0;
  if (!p.half_pixel) {
    h = std::max(h, 1.0);
    w = std::max(w, 1.0);
  }
  g.cell_h = h / double(p.out_h);
  g.cell_w = w / double(p.out_w);
  // Bounds the samples of an implausibly large region. NaN takes no samples.
  auto samples = [&](double cell) {
    const double wanted = std::ceil(cell);
    return p.sampling > 0 ? p.sampling : wanted > 0 ? static_cast<int64_t>(std::min(wanted, 4096.0)) : 0;
  };
  g.samples_h = samples(g.cell_h);
  g.samples_w = samples(g.cell_w);
  return g;
}

/// Samples [first, last) of a cell, which include all that lie on the image; the others are 0.
struct SampleSpan {
  int64_t first, last;
};

/// The span for n samples at origin + (k + 0.5) step. In a region far larger than the image, nearly all
/// samples are outside.
SampleSpan span_inside(double origin, double step, int64_t n, int64_t extent) {
  if (!(step > 0)) return {0, n};
  // One more on each side, since the rounding of the samples' own coordinates decides.
  const double first = std::ceil((-1.0 - origin) / step - 0.5) - 1;
  const double last = std::floor((double(extent) - origin) / step - 0.5) + 2;
  const double most = double(n);
  const int64_t begin = first > 0 ? static_cast<int64_t>(std::min(first, most)) : 0;
  return {begin, last > double(begin) ? static_cast<int64_t>(std::min(last, most)) : begin};
}

struct CellSpans {
  SampleSpan h, w;
  bool all;  // no sample is left out
};

CellSpans spans_of(const RoiPlan& p, const RoiGrid& g, int64_t i, int64_t j) {
  const double step_h = g.cell_h / double(g.samples_h), step_w = g.cell_w / double(g.samples_w);
  CellSpans s{span_inside(g.y0 + double(i) * g.cell_h, step_h, g.samples_h, p.height),
              span_inside(g.x0 + double(j) * g.cell_w, step_w, g.samples_w, p.width), false};
  s.all = (s.h.last - s.h.first) * (s.w.last - s.w.first) == g.samples_h * g.samples_w;
  return s;
}

template <class T>
T align_cell(const RoiPlan& p, const RoiGrid& g, const T* plane, int64_t i, int64_t j) {
  const CellSpans s = spans_of(p, g, i, j);
  double sum = 0, best = 0;
  bool first = s.all;  // samples outside the span are 0
  for (int64_t a = s.h.first; a < s.h.last; ++a) {
    const double y = g.y0 + double(i) * g.cell_h + (double(a) + 0.5) * g.cell_h / double(g.samples_h);
    for (int64_t b = s.w.first; b < s.w.last; ++b) {
      const double x = g.x0 + double(j) * g.cell_w + (double(b) + 0.5) * g.cell_w / double(g.samples_w);
      const Corners c = corners_of(p, y, x);
      for (int k = 0; k < 4; ++k) {
        const double term = c.weight[k] * double(plane[c.at[k]]);
        sum += term;
        best = first ? term : std::max(best, term);
        first = false;
      }
    }
  }
  if (p.maximum) return static_cast<T>(best);
  return static_cast<T>(sum / double(std::max<int64_t>(g.samples_h * g.samples_w, 1)));
}

/// The corners of one cell's samples: computed once, used for every channel.
struct CellSamples {
  static constexpr int64_t kMost = 64;
  std::array<Corners, kMost> corners;
  int64_t count = 0;
  bool all = false;

  /// Returns false if there are more than kMost samples.
  bool find(const RoiPlan& p, const RoiGrid& g, int64_t i, int64_t j) {
    const CellSpans s = spans_of(p, g, i, j);
    count = (s.h.last - s.h.first) * (s.w.last - s.w.first);
    all = s.all;
    if (count > kMost) return false;
    size_t n = 0;
    for (int64_t a = s.h.first; a < s.h.last; ++a) {
      const double y = g.y0 + double(i) * g.cell_h + (double(a) + 0.5) * g.cell_h / double(g.samples_h);
      for (int64_t b = s.w.first; b < s.w.last; ++b) {
        const double x = g.x0 + double(j) * g.cell_w + (double(b) + 0.5) * g.cell_w / double(g.samples_w);
        corners[n++] = corners_of(p, y, x);
      }
    }
    return true;
  }
};

/// Like align_cell, with sums in the same order.
template <class T>
T align_samples(const RoiPlan& p, const RoiGrid& g, const CellSamples& samples, const T* plane) {
  double sum = 0, best = 0;
  bool first = samples.all;
  for (int64_t n = 0; n < samples.count; ++n) {
    const Corners& c = samples.corners[static_cast<size_t>(n)];
    for (int k = 0; k < 4; ++k) {
      const double term = c.weight[k] * double(plane[c.at[k]]);
      if (!p.maximum) {
        sum += term;
        continue;
      }
      best = first ? term : std::max(best, term);
      first = false;
    }
  }
  if (p.maximum) return static_cast<T>(best);
  return static_cast<T>(sum / double(std::max<int64_t>(g.samples_h * g.samples_w, 1)));
}

template <class T>
void align_region(const RoiPlan& p, const T* x, const T* roi, int64_t image, T* y) {
  const RoiGrid g = grid_of(p, roi);
  const int64_t size = p.height * p.width, cells = p.out_h * p.out_w;
  x += image * p.channels * size;
  CellSamples samples;
  for (int64_t at = 0; at < cells; ++at) {
    const int64_t i = at / p.out_w, j = at % p.out_w;
    if (samples.find(p, g, i, j)) {
      for (int64_t c = 0; c < p.channels; ++c) y[c * cells + at] = align_samples(p, g, samples, x + c * size);
    } else {
      for (int64_t c = 0; c < p.channels; ++c) y[c * cells + at] = align_cell(p, g, x + c * size, i, j);
    }
  }
}

/// The corners of sample (a, b) of cell (i, j).
Corners sample_of(const RoiPlan& p, const RoiGrid& g, std::array<int64_t, 2> cell,
                  std::array<int64_t, 2> at) {
  const auto [i, j] = cell;
  const auto [a, b] = at;
  return corners_of(p, g.y0 + double(i) * g.cell_h + (double(a) + 0.5) * g.cell_h / double(g.samples_h),
                    g.x0 + double(j) * g.cell_w + (double(b) + 0.5) * g.cell_w / double(g.samples_w));
}

/// One cell in the backward pass.
template <class T>
struct CellGrad {
  std::array<int64_t, 2> cell;
  const T* plane;
  T dy;
  T* dx;
};

/// Adds dy of one cell to its corners: to all by weight, or to the largest one.
template <class T>
void align_cell_grad(const RoiPlan& p, const RoiGrid& g, const CellGrad<T>& back) {
  const auto [cell, plane, dy, dx] = back;
  const double share = double(dy) / double(std::max<int64_t>(g.samples_h * g.samples_w, 1));
  double best = 0, best_weight = 0;
  int64_t best_at = -1;
  const CellSpans s = spans_of(p, g, cell[0], cell[1]);
  for (int64_t a = s.h.first; a < s.h.last; ++a) {
    for (int64_t b = s.w.first; b < s.w.last; ++b) {
      const Corners c = sample_of(p, g, cell, {a, b});
      for (int k = 0; k < 4; ++k) {
        const double term = c.weight[k] * double(plane[c.at[k]]);
        if (!p.maximum) dx[c.at[k]] += static_cast<T>(share * c.weight[k]);
        if (best_at < 0 || term > best) {
          best = term;
          best_at = c.at[k];
          best_weight = c.weight[k];
        }
      }
    }
  }
  const bool is_left_out = !s.all && best < 0;  // the maximum is a 0 outside the image
  if (p.maximum && best_at >= 0 && !is_left_out) dx[best_at] += static_cast<T>(double(dy) * best_weight);
}

/// Processes all regions of one (image, channel) plane in order.
template <class T>
void align_plane_grad(const RoiPlan& p, const ir::RunArgs& args, int64_t plane, T* dx) {
  const int64_t image = plane / p.channels, c = plane % p.channels, size = p.height * p.width;
  std::fill_n(dx, size, T(0));
  for (int64_t r = 0; r < p.regions; ++r) {
    if (std::clamp<int64_t>(in_ptr<int64_t>(args, 2)[r], 0, p.batch - 1) != image) continue;
    const RoiGrid g = grid_of(p, in_ptr<T>(args, 1) + r * 4);
    const T* dy = in_ptr<T>(args, 3) + (r * p.channels + c) * p.out_h * p.out_w;
    for (int64_t i = 0; i < p.out_h; ++i) {
      for (int64_t j = 0; j < p.out_w; ++j) {
        align_cell_grad<T>(p, g, {{i, j}, in_ptr<T>(args, 0) + plane * size, *dy++, dx});
      }
    }
  }
}

RoiPlan plan_roi(const ir::NodeView& node, const Dims& y) {
  const Dims x = node.in_dims(0);
  RoiPlan p{.batch = x[0],
            .channels = x[1],
            .height = x[2],
            .width = x[3],
            .regions = y[0],
            .out_h = y[2],
            .out_w = y[3],
            .scale = node.attrs.get_float("spatial_scale", 1)};
  p.sampling = node.attrs.get_int("sampling_ratio", 0);
  base::require(p.sampling >= 0 && p.sampling <= 4096, "sampling_ratio ", p.sampling,
                " is outside [0, 4096]");
  p.half_pixel = node.attrs.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  p.maximum = node.attrs.get_string("mode", "avg") == "max";
  return p;
}

ir::BoundKernel prepare_max_roi(const ir::KernelInit& init) {
  const RoiPlan plan = plan_roi(init.node, init.node.out_dims(0));
  base::require(init.node.in_dims(1)[1] == 5, "max_roi_pool regions have 5 columns, got ",
                init.node.in_dims(1)[1]);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      const int64_t size = plan.channels * plan.out_h * plan.out_w;
      cpu::pool_of(args.stream).run(plan.regions, [&](int64_t r) {
        max_region<T>(plan, in_ptr<T>(args, 0), in_ptr<T>(args, 1) + r * 5, out_ptr<T>(args, 0) + r * size);
      });
    }};
  });
}

ir::BoundKernel prepare_roi_align(const ir::KernelInit& init) {
  const RoiPlan plan = plan_roi(init.node, init.node.out_dims(0));
  base::require(init.node.in_dims(1)[1] == 4, "roi_align regions have 4 columns, got ",
                init.node.in_dims(1)[1]);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      const int64_t size = plan.channels * plan.out_h * plan.out_w;
      cpu::pool_of(args.stream).run(plan.regions, [&](int64_t r) {
        const int64_t image = std::clamp<int64_t>(in_ptr<int64_t>(args, 2)[r], 0, plan.batch - 1);
        align_region<T>(plan, in_ptr<T>(args, 0), in_ptr<T>(args, 1) + r * 4, image,
                        out_ptr<T>(args, 0) + r * size);
      });
    }};
  });
}

ir::BoundKernel prepare_roi_align_grad(const ir::KernelInit& init) {
  const RoiPlan plan = plan_roi(init.node, init.node.in_dims(3));
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(plan.batch * plan.channels, [&](int64_t plane) {
        align_plane_grad<T>(plan, args, plane, out_ptr<T>(args, 0) + plane * plan.height * plan.width);
      });
    }};
  });
}

}  // namespace

std::vector<ir::Kernel> roi_align_grad_cpu_kernels() { return float_reference(prepare_roi_align_grad); }
std::vector<ir::Kernel> max_unpool_cpu_kernels() { return float_reference(prepare_unpool); }
std::vector<ir::Kernel> max_roi_pool_cpu_kernels() { return float_reference(prepare_max_roi); }
std::vector<ir::Kernel> roi_align_cpu_kernels() { return float_reference(prepare_roi_align); }

}  // namespace trireme::ops
