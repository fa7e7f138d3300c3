// Kernels of resize and upsample on CPU: one axis after the other, each a weighted gather of lines.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/image/image_kernels.h"
#include "ops/image/resize_plan.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

/// One pass: x [outer, in, inner] -> y [outer, out, inner].
struct Pass {
  const ResizeAxis* axis;
  int64_t outer, inner;
};

struct ResizeRun {
  ResizePlan plan;
  std::vector<Pass> passes;
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

/// One output line of a pass: the weighted sum of `taps` input lines of `inner` values.
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
void run_pass(const Pass& pass, bool nearest, const T* x, T* y, base::ThreadPool& pool) {
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

/// Results whose coordinate falls outside the image on any axis get the extrapolation value.
template <class T>
void extrapolate(const ResizeRun& run, T* y) {
  for (const Pass& pass : run.passes) {
    const ResizeAxis& a = *pass.axis;
    const int64_t inner = product(run.out, a.axis + 1, run.out.size()), outer = product(run.out, 0, a.axis);
    for (int64_t line = 0; line < outer * a.out && !a.outside.empty(); ++line) {
      if (a.outside[static_cast<size_t>(line % a.out)])
        std::fill_n(y + line * inner, inner, T(run.plan.extrapolation));
    }
  }
}

/// All passes, alternating between two buffers; the last one writes y.
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

/// Integer images are interpolated in f32 and rounded; they saturate.
template <class T>
ir::BoundKernel bind_integer(std::shared_ptr<const ResizeRun> run, int64_t in_elements) {
  const int64_t out_elements = tensor::element_count(run->out);
  const int64_t bytes = (in_elements + out_elements + 2 * run->largest) * 4;
  return {[=](const ir::RunArgs& args) {
            float* x = static_cast<float*>(args.workspace);
            float *y = x + in_elements, *scratch = y + out_elements;
            for (int64_t i = 0; i < in_elements; ++i) x[i] = static_cast<float>(in_ptr<T>(args, 0)[i]);
            run_all(*run, x, y, scratch, cpu::pool_of(args.stream));
            for (int64_t i = 0; i < out_elements; ++i) {
              const double v = std::clamp(std::trunc(double(y[i])), double(std::numeric_limits<T>::lowest()),
                                          double(std::numeric_limits<T>::max()));
              out_ptr<T>(args, 0)[i] = static_cast<T>(v);
            }
          },
          bytes};
}

PrepareFn prepare(bool is_upsample) {
  return [is_upsample](const ir::KernelInit& init) {
    const auto run = make_run(init.node, is_upsample);
    return tensor::visit_dtype(init.node.in[0].dtype, [&](auto t) -> ir::BoundKernel {
      using T = decltype(t);
      if constexpr (std::is_floating_point_v<T>) {
        return bind_direct<T>(run);
      } else if constexpr (std::is_integral_v<T> && sizeof(T) <= 4 && !std::is_same_v<T, bool>) {
        if (run->plan.nearest) return bind_direct<T>(run);
        return bind_integer<T>(run, tensor::element_count(init.node.in_dims(0)));
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

std::vector<ir::Kernel> kernels(bool is_upsample) {
  const ir::Kernel plain{.name = "separable", .refuse = refuse, .prepare = prepare(is_upsample)};
  return {plain, via_f32(plain)};
}

}  // namespace

std::vector<ir::Kernel> resize_cpu_kernels() { return kernels(false); }
std::vector<ir::Kernel> upsample_cpu_kernels() { return kernels(true); }

}  // namespace trireme::ops
