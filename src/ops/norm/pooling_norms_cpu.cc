// Kernels of add_layer_norm, masked_mean_pool and l2_normalize on CPU.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/norm/norm_rows.h"
#include "ops/kernel_forms.h"
#include "ops/norm/norm_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

ir::Refusal refuse_not_f32(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  return refuse_dtype(node, 0, {DType::f32});
}

ir::BoundKernel prepare_add_layer_norm(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0);
  const cpu::LayerNorm norm{.x = nullptr,
                            .y = nullptr,
                            .rows = product(x, 0, x.size() - 1),
                            .cols = x.back(),
                            .eps = static_cast<float>(init.node.attrs.get_float("epsilon", 1e-5))};
  const size_t in_count = init.node.in.size(), out_count = init.node.out.size();
  return {[=](const ir::RunArgs& args) {
    cpu::LayerNorm call = norm;
    call.x = in_ptr<float>(args, 0);
    call.residual = in_ptr<float>(args, 1);
    call.scale = in_ptr<float>(args, 2);
    call.bias = opt_ptr<float>(args, 3, in_count);
    call.y = out_ptr<float>(args, 0);
    if (out_count > 1) call.sum_out = out_ptr<float>(args, 1);
    cpu::layer_norm(call, cpu::pool_of(args.stream));
  }};
}

template <class T>
void add_layer_norm_row(const ir::RunArgs& args, size_t in_count, int64_t row, int64_t n, double epsilon) {
  const T *x = in_ptr<T>(args, 0) + row * n, *r = in_ptr<T>(args, 1) + row * n,
          *bias = opt_ptr<T>(args, 3, in_count);
  T* y = out_ptr<T>(args, 0) + row * n;
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]) + double(r[i]);
  const double mean = sum / double(n);
  for (int64_t i = 0; i < n; ++i) squares += std::pow(double(x[i]) + double(r[i]) - mean, 2);
  const double inverse = 1 / std::sqrt(squares / double(n) + epsilon);
  for (int64_t i = 0; i < n; ++i) {
    const double v = (double(x[i]) + double(r[i]) - mean) * inverse * double(in_ptr<T>(args, 2)[i]);
    y[i] = T(bias == nullptr ? v : v + double(bias[i]));
  }
}

ir::BoundKernel prepare_add_layer_norm_reference(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0);
  const int64_t rows = product(x, 0, x.size() - 1), n = x.back();
  const double epsilon = init.node.attrs.get_float("epsilon", 1e-5);
  const size_t in_count = init.node.in.size(), out_count = init.node.out.size();
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      T* sum = out_count > 1 ? out_ptr<T>(args, 1) : nullptr;
      cpu::pool_of(args.stream).run(rows, [&](int64_t row) {
        add_layer_norm_row<T>(args, in_count, row, n, epsilon);
        for (int64_t i = row * n; sum != nullptr && i < (row + 1) * n; ++i)
          sum[i] = in_ptr<T>(args, 0)[i] + in_ptr<T>(args, 1)[i];
      });
    }};
  });
}

/// A mask of any type is converted to f32 in the workspace.
ir::BoundKernel prepare_mean_pool(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0);
  base::require(init.node.in_dims(1) == Dims{x[0], x[1]}, "mask of shape ", init.node.in[1].shape.to_string(),
                " for ", init.node.in[0].shape.to_string());
  return tensor::visit_dtype(init.node.in[1].dtype, [&](auto t) {
    using M = decltype(t);
    auto run = [x](const ir::RunArgs& args) {
      float* weights = static_cast<float*>(args.workspace);
      const M* mask = in_ptr<M>(args, 1);
      std::transform(mask, mask + x[0] * x[1], weights, [](M m) { return static_cast<float>(m); });
      const cpu::MeanPool call{.x = in_ptr<float>(args, 0),
                               .mask = weights,
                               .y = out_ptr<float>(args, 0),
                               .batch = x[0],
                               .tokens = x[1],
                               .width = x[2]};
      cpu::mean_pool(call, cpu::pool_of(args.stream));
    };
    return ir::BoundKernel{run, x[0] * x[1] * 4};
  });
}

template <class T, class M>
ir::BoundKernel bind_mean_pool_reference(const Dims& x) {
  return {[x](const ir::RunArgs& args) {
    cpu::pool_of(args.stream).run(x[0], [&](int64_t b) {
      const M* mask = in_ptr<M>(args, 1) + b * x[1];
      double count = 0;
      for (int64_t t = 0; t < x[1]; ++t) count += double(mask[t]);
      for (int64_t j = 0; j < x[2]; ++j) {
        double sum = 0;
        for (int64_t t = 0; t < x[1]; ++t) {
          if (double(mask[t]) != 0)
            sum += double(mask[t]) * double(in_ptr<T>(args, 0)[(b * x[1] + t) * x[2] + j]);
        }
        out_ptr<T>(args, 0)[b * x[2] + j] = T(sum / std::max(count, 1e-9));
      }
    });
  }};
}

ir::BoundKernel prepare_mean_pool_reference(const ir::KernelInit& init) {
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    return tensor::visit_dtype(init.node.in[1].dtype, [&](auto m) {
      return bind_mean_pool_reference<decltype(t), decltype(m)>(init.node.in_dims(0));
    });
  });
}

ir::BoundKernel prepare_l2(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0);
  const int64_t cols = x.empty() ? 1 : x.back(), rows = tensor::element_count(x) / cols;
  const float epsilon = static_cast<float>(init.node.attrs.get_float("epsilon", 1e-12));
  return {[rows, cols, epsilon](const ir::RunArgs& args) {
    const cpu::L2Rows call{.x = in_ptr<float>(args, 0),
                           .y = out_ptr<float>(args, 0),
                           .rows = rows,
                           .cols = cols,
                           .eps = epsilon};
    cpu::l2_normalize_rows(call, cpu::pool_of(args.stream));
  }};
}

ir::BoundKernel prepare_l2_reference(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0);
  const int64_t n = x.empty() ? 1 : x.back(), rows = n == 0 ? 0 : tensor::element_count(x) / n;
  const double epsilon = init.node.attrs.get_float("epsilon", 1e-12);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(rows, [&](int64_t row) {
        const T* from = in_ptr<T>(args, 0) + row * n;
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += double(from[i]) * double(from[i]);
        const double norm = std::max(std::sqrt(sum), epsilon);
        for (int64_t i = 0; i < n; ++i) out_ptr<T>(args, 0)[row * n + i] = T(double(from[i]) / norm);
      });
    }};
  });
}

}  // namespace

std::vector<ir::Kernel> add_layer_norm_cpu_kernels() {
  const ir::Kernel fast{
      .name = "vector", .refuse = refuse_not_f32, .prepare = prepare_add_layer_norm, .may_overwrite = 3};
  return faster({fast}, float_reference(prepare_add_layer_norm_reference));
}

std::vector<ir::Kernel> masked_mean_pool_cpu_kernels() {
  const ir::Kernel fast{.name = "vector", .refuse = refuse_not_f32, .prepare = prepare_mean_pool};
  return faster({fast}, float_reference(prepare_mean_pool_reference));
}

std::vector<ir::Kernel> l2_normalize_cpu_kernels() {
  const ir::Kernel fast{
      .name = "vector", .refuse = refuse_not_f32, .prepare = prepare_l2, .may_overwrite = 1};
  return faster({fast}, float_reference(prepare_l2_reference));
}

}  // namespace trireme::ops
