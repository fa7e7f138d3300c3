// Kernels of resize and upsample on CPU: whole rows of the last two axes that change or, as the reference,
// one axis after the other, each a weighted gather of lines.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/move/resize_lines.h"
#include "ops/image/image_kernels.h"
#include "ops/image/resize_plan.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

/// One pass: x [outer, in, inner] -> y [outer, out, inner].
struct ForwardPass {
  const ResizeAxis* axis;
  int64_t outer, inner;
};

struct ResizeRun {
  ResizePlan plan;
  std::vector<ForwardPass> passes;
  int64_t largest = 0;  // elements of the largest intermediate
  Dims out;
};

std::shared_ptr<const ResizeRun> make_run(const ir::NodeView& node, bool is_upsample) {
  auto run = std::make_shared<ResizeRun>();
  run->plan = plan_resize(node, is_upsample);
  Dims dims = node.in_dims(0);
  for (const ResizeAxis& axis : run->plan.axes) {
    run->passes.push_back({&axis, product(dims, 0, axis.axis), product(dims, axis.axis + 1, dims.size())});
    dims[axis.axis] = axis.out;
    run->largest = std::max(run->largest, tensor::element_count(dims));
  }
  run->out = dims;
  return run;
}

/// One output line of a pass: the weighted sum of `taps` input lines with `inner` values each.
template <class T>
void blend_line(const ResizeAxis& a, const T* x, T* y, int64_t at, int64_t inner) {
  const int32_t* index = a.index.data() + at * a.taps;
  const float* weight = a.weight.data() + at * a.taps;
  if (a.taps == 2) {
    const T *lo = x + index[0] * inner, *hi = x + index[1] * inner;
    const T w0 = T(weight[0]), w1 = T(weight[1]);
    for (int64_t i = 0; i < inner; ++i) y[i] = w0 * lo[i] + w1 * hi[i];
    return;
  }
  std::fill_n(y, inner, T(0));
  for (int64_t k = 0; k < a.taps; ++k) {
    const T* line = x + index[k] * inner;
    for (int64_t i = 0; i < inner; ++i) y[i] += T(weight[k]) * line[i];
  }
}

template <class T>
void run_pass(const ForwardPass& pass, bool nearest, const T* x, T* y, base::ThreadPool& pool) {
  const ResizeAxis& a = *pass.axis;
  const int64_t inner = pass.inner;
  pool.for_range(pass.outer * a.out, grain_for(double(inner * a.taps)), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t at = line % a.out;
      const T* from = x + line / a.out * a.in * inner;
      if (nearest) {
        std::copy_n(from + a.index[static_cast<size_t>(at)] * inner, inner, y + line * inner);
      } else {
        if constexpr (std::is_floating_point_v<T>) blend_line(a, from, y + line * inner, at, inner);
      }
    }
  });
}

/// Results whose coordinate lies outside the image on any axis get the extrapolation value.
template <class T>
void extrapolate(const ResizeRun& run, T* y) {
  for (const ForwardPass& pass : run.passes) {
    const ResizeAxis& a = *pass.axis;
    const int64_t inner = product(run.out, a.axis + 1, run.out.size()), outer = product(run.out, 0, a.axis);
    for (int64_t line = 0; line < outer * a.out && !a.outside.empty(); ++line) {
      if (a.outside[static_cast<size_t>(line % a.out)])
        std::fill_n(y + line * inner, inner, T(run.plan.extrapolation));
    }
  }
}

/// Runs all passes, alternating between two buffers; the last one writes y.
template <class T>
void run_all(const ResizeRun& run, const T* x, T* y, T* scratch, base::ThreadPool& pool) {
  const size_t count = run.passes.size();
  if (count == 0) std::copy_n(x, tensor::element_count(run.out), y);
  const T* from = x;
  for (size_t i = 0; i < count; ++i) {
    T* to = i + 1 == count ? y : scratch + static_cast<int64_t>(i % 2) * run.largest;
    run_pass(run.passes[i], run.plan.nearest, from, to, pool);
    from = to;
  }
  extrapolate(run, y);
}

template <class T>
ir::BoundKernel bind_direct(std::shared_ptr<const ResizeRun> run) {
  const int64_t bytes = run->passes.size() > 1 ? 2 * run->largest * static_cast<int64_t>(sizeof(T)) : 0;
  return {[run](const ir::RunArgs& args) {
            run_all(*run, in_ptr<T>(args, 0), out_ptr<T>(args, 0), static_cast<T*>(args.workspace),
                    cpu::pool_of(args.stream));
          },
          bytes};
}

constexpr int64_t kPixel = 8;  // fewest elements of a pixel that is blended as a vector

/// One pass over memory: x [outer, rows.in, columns.in, inner].
struct LinePass {
  int64_t outer = 1, inner = 1, out_elements = 0;
  std::optional<cpu::LineAxis> rows, columns;
};

cpu::LineAxis line_axis(const ResizeAxis& a) {
  cpu::LineAxis line{.in = a.in, .out = a.out, .taps = a.taps, .index = {}, .weight = {}};
  for (int64_t k = 0; k < a.taps; ++k) {
    for (int64_t o = 0; o < a.out; ++o) {
      line.index.push_back(a.index[static_cast<size_t>(o * a.taps + k)]);
      line.weight.push_back(a.weight[static_cast<size_t>(o * a.taps + k)]);
    }
  }
  return line;
}

/// Elements of small pixels become columns of their own.
void set_columns(LinePass& pass, const ResizeAxis& a) {
  pass.columns = line_axis(a);
  if (pass.inner == 1 || pass.inner >= kPixel || a.in * pass.inner > INT32_MAX) return;
  pass.columns = cpu::widened(*pass.columns, pass.inner);
  pass.inner = 1;
}

struct LineRun {
  std::vector<LinePass> passes;
  bool nearest = true;
  int element_bytes = 4;
  int64_t largest = 0, scratch_bytes = 0;  // elements between passes, and scratch of one pass

  cpu::ResizeLines call(size_t i, const void* x, void* y) const {
    const LinePass& p = passes[i];
    return {.x = x,
            .y = y,
            .outer = p.outer,
            .inner = p.inner,
            .rows = p.rows ? &*p.rows : nullptr,
            .columns = p.columns ? &*p.columns : nullptr,
            .nearest = nearest,
            .element_bytes = element_bytes};
  }
};

/// The last two axes that change share a pass if they are neighbours; each axis before them has its own.
std::shared_ptr<const LineRun> make_lines(const ir::NodeView& node, bool is_upsample) {
  auto run = std::make_shared<LineRun>();
  const ResizePlan plan = plan_resize(node, is_upsample);
  run->nearest = plan.nearest;
  run->element_bytes = plan.nearest ? tensor::bits_of(node.in[0].dtype) / 8 : 4;
  Dims dims = node.in_dims(0);
  for (size_t i = 0; i < plan.axes.size(); ++i) {
    const ResizeAxis& a = plan.axes[i];
    const ResizeAxis* b = i + 2 == plan.axes.size() ? &plan.axes[i + 1] : nullptr;
    if (b != nullptr && product(dims, a.axis + 1, b->axis) != 1) b = nullptr;
    LinePass pass{.outer = product(dims, 0, a.axis),
                  .inner = product(dims, (b ? b : &a)->axis + 1, dims.size())};
    if (b != nullptr || pass.inner >= kPixel) pass.rows = line_axis(a);
    if (b != nullptr || pass.inner < kPixel) set_columns(pass, b ? *b : a);
    dims[a.axis] = a.out;
    if (b != nullptr) dims[b->axis] = b->out, ++i;
    pass.out_elements = tensor::element_count(dims);
    run->passes.push_back(std::move(pass));
    run->scratch_bytes = std::max(
        run->scratch_bytes, cpu::resize_scratch_bytes(run->call(run->passes.size() - 1, nullptr, nullptr)));
    if (i + 1 < plan.axes.size()) run->largest = std::max(run->largest, tensor::element_count(dims));
  }
  return run;
}

/// Bytes of the tensors between passes (at most two), which precede the scratch of a pass.
int64_t between_bytes(const LineRun& run) {
  const int64_t tensors = std::min<int64_t>(2, static_cast<int64_t>(run.passes.size()) - 1);
  return tensors * align_up(run.largest * run.element_bytes);
}

int64_t workspace_of(const LineRun& run) { return between_bytes(run) + run.scratch_bytes; }

void run_lines(const LineRun& run, const void* x, void* y, void* workspace, base::ThreadPool& pool) {
  std::byte* between = static_cast<std::byte*>(workspace);
  for (size_t i = 0; i < run.passes.size(); ++i) {
    void* to = i + 1 == run.passes.size()
                   ? y
                   : between + static_cast<int64_t>(i % 2) * align_up(run.largest * run.element_bytes);
    cpu::resize_lines(run.call(i, x, to), between + between_bytes(run), pool);
    x = to;
  }
}

/// Integer images are converted to f32, interpolated by `resize(x, y, scratch, pool)`, truncated and clamped.
template <class T, class Resize>
ir::BoundKernel bind_integer(int64_t in_elements, int64_t out_elements, int64_t scratch_bytes,
                             Resize resize) {
  const int64_t x_bytes = align_up(in_elements * 4), y_bytes = align_up(out_elements * 4);
  return {[=](const ir::RunArgs& args) {
            std::byte* at = static_cast<std::byte*>(args.workspace);
            float *x = reinterpret_cast<float*>(at), *y = reinterpret_cast<float*>(at + x_bytes);
            for (int64_t i = 0; i < in_elements; ++i) x[i] = static_cast<float>(in_ptr<T>(args, 0)[i]);
            resize(x, y, at + x_bytes + y_bytes, cpu::pool_of(args.stream));
            for (int64_t i = 0; i < out_elements; ++i) {
              const double v = std::clamp(std::trunc(double(y[i])), double(std::numeric_limits<T>::lowest()),
                                          double(std::numeric_limits<T>::max()));
              out_ptr<T>(args, 0)[i] = static_cast<T>(v);
            }
          },
          x_bytes + y_bytes + scratch_bytes};
}

template <class T>
constexpr bool is_image_integer = std::is_integral_v<T> && sizeof(T) <= 4 && !std::is_same_v<T, bool>;

PrepareFn prepare_lines(bool is_upsample) {
  return [is_upsample](const ir::KernelInit& init) {
    const auto run = make_lines(init.node, is_upsample);
    const int64_t in_elements = tensor::element_count(init.node.in_dims(0)),
                  out_elements = tensor::element_count(init.node.out_dims(0));
    return tensor::visit_dtype(init.node.in[0].dtype, [&](auto t) -> ir::BoundKernel {
      if constexpr (is_image_integer<decltype(t)>) {
        if (!run->nearest) {
          return bind_integer<decltype(t)>(
              in_elements, out_elements, workspace_of(*run),
              [run](const float* x, float* y, void* scratch, base::ThreadPool& pool) {
                run_lines(*run, x, y, scratch, pool);
              });
        }
      }
      return {[run](const ir::RunArgs& args) {
                run_lines(*run, args.in[0], args.out[0], args.workspace, cpu::pool_of(args.stream));
              },
              workspace_of(*run)};
    });
  };
}

PrepareFn prepare_resize(bool is_upsample) {
  return [is_upsample](const ir::KernelInit& init) {
    const auto run = make_run(init.node, is_upsample);
    return tensor::visit_dtype(init.node.in[0].dtype, [&](auto t) -> ir::BoundKernel {
      using T = decltype(t);
      if constexpr (std::is_floating_point_v<T>) {
        return bind_direct<T>(run);
      } else if constexpr (is_image_integer<T>) {
        if (run->plan.nearest) return bind_direct<T>(run);
        return bind_integer<T>(tensor::element_count(init.node.in_dims(0)), tensor::element_count(run->out),
                               2 * run->largest * 4,
                               [run](const float* x, float* y, void* scratch, base::ThreadPool& pool) {
                                 run_all(*run, x, y, static_cast<float*>(scratch), pool);
                               });
      } else {
        return bind_direct<T>(run);
      }
    });
  };
}

ir::Refusal refuse(const ir::NodeView& node) {
  const DType type = node.in[0].dtype;
  if (tensor::bits_of(type) < 8 || (tensor::is_float(type) && tensor::bits_of(type) == 8)) {
    return base::concat("operand 0 is ", name_of(type));
  }
  const bool nearest = node.attrs.get_string("mode", "nearest") == "nearest";
  const bool wide = type == DType::i64 || type == DType::u64 || type == DType::boolean;
  const bool half = type == DType::f16 || type == DType::bf16;
  if (!nearest && (wide || half)) return base::concat("no interpolation of ", name_of(type));
  if (half && node.attrs.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize") {
    return "16-bit floats are extrapolated through f32";
  }
  return std::nullopt;
}

/// This kernel needs rising coordinates, which only regions (tf_crop_and_resize) may violate, and an axis
/// that changes.
ir::Kernel lines_kernel(bool is_upsample) {
  const auto refuse_lines = [is_upsample](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse(node)) return why;
    const bool nearest = node.attrs.get_string("mode", "nearest") == "nearest";
    if (!nearest && node.in[0].dtype == DType::f64) return "rows are blended in f32";
    if (node.attrs.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize")
      return "coordinates of a region may fall or lie outside";
    if (auto why = refuse_empty({.attrs = node.attrs, .in = {node.in[0]}, .out = node.out})) return why;
    const ResizePlan plan = plan_resize(node, is_upsample);
    if (plan.axes.empty()) return "no axis changes";
    for (const ResizeAxis& a : plan.axes) {
      if (a.taps > cpu::kMostResizeTaps) return "a result is blended from very many elements";
    }
    return std::nullopt;
  };
  return {.name = "lines", .refuse = refuse_lines, .prepare = prepare_lines(is_upsample)};
}

std::vector<ir::Kernel> kernels(bool is_upsample) {
  const ir::Kernel lines = lines_kernel(is_upsample);
  const ir::Kernel plain{.name = "separable", .refuse = refuse, .prepare = prepare_resize(is_upsample)};
  return {lines, via_f32(lines), plain, via_f32(plain)};
}

}  // namespace

std::vector<ir::Kernel> resize_cpu_kernels() { return kernels(false); }
std::vector<ir::Kernel> upsample_cpu_kernels() { return kernels(true); }

}  // namespace trireme::ops
