// Kernels of layer_norm and rms_norm on CPU.
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/norm/norm_rows.h"
#include "ops/kernel_forms.h"
#include "ops/norm/norm_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

/// Rows of `n` values. Scale and bias broadcast to the normalised axes, so each column has its own offset in
/// them.
struct RowNormPlan {
  int64_t rows, n;
  double epsilon;
  std::vector<int64_t> scale_at, bias_at;  // [n]: element of scale and bias per column; empty if absent
};

/// For each column of the normalised axes, the offset in an operand that broadcasts to them.
std::vector<int64_t> column_offsets(const Dims& operand, const Dims& normalised) {
  base::require(operand.size() <= normalised.size(), "scale of shape ", tensor::to_string(operand),
                " does not fit the normalised axes ", tensor::to_string(normalised));
  const std::vector<int64_t> strides = broadcast_strides(operand, normalised.size());
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < tensor::element_count(normalised); ++i) {
    int64_t rest = i, at = 0;
    for (size_t d = normalised.size(); d-- > 0;) {
      at += rest % normalised[d] * strides[d];
      rest /= normalised[d];
    }
    offsets.push_back(at);
  }
  return offsets;
}

std::shared_ptr<const RowNormPlan> plan_rows(const ir::NodeView& node) {
  const Dims x = node.in_dims(0);
  const size_t axis = ir::normal_axis(node.attrs.get_int("axis", -1), x.size());
  const Dims normalised(x.begin() + static_cast<int64_t>(axis), x.end());
  auto plan = std::make_shared<RowNormPlan>();
  plan->rows = product(x, 0, axis);
  plan->n = product(x, axis, x.size());
  plan->epsilon = node.attrs.get_float("epsilon", 1e-5);
  plan->scale_at = column_offsets(node.in_dims(1), normalised);
  if (node.present(2)) plan->bias_at = column_offsets(node.in_dims(2), normalised);
  return plan;
}

template <class T>
void layer_norm_row(const RowNormPlan& p, const ir::RunArgs& args, size_t out_count, int64_t row) {
  const T *x = in_ptr<T>(args, 0) + row * p.n, *scale = in_ptr<T>(args, 1);
  T* y = out_ptr<T>(args, 0) + row * p.n;
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < p.n; ++i) sum += double(x[i]);
  const double mean = sum / double(p.n);
  for (int64_t i = 0; i < p.n; ++i) squares += (double(x[i]) - mean) * (double(x[i]) - mean);
  const double inverse = 1 / std::sqrt(squares / double(p.n) + p.epsilon);
  for (int64_t i = 0; i < p.n; ++i) {
    const size_t column = static_cast<size_t>(i);
    const double v = (double(x[i]) - mean) * inverse * double(scale[p.scale_at[column]]);
    y[i] = T(p.bias_at.empty() ? v : v + double(in_ptr<T>(args, 2)[p.bias_at[column]]));
  }
  if (out_count > 1 && args.out[1] != nullptr) out_ptr<T>(args, 1)[row] = T(mean);
  if (out_count > 2 && args.out[2] != nullptr) out_ptr<T>(args, 2)[row] = T(inverse);
}

ir::BoundKernel prepare_layer_norm(const ir::KernelInit& init) {
  const auto plan = plan_rows(init.node);
  const size_t out_count = init.node.out.size();
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan, out_count](const ir::RunArgs& args) {
      cpu::pool_of(args.stream)
          .for_range(plan->rows, grain_for(8.0 * double(plan->n)), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) layer_norm_row<T>(*plan, args, out_count, row);
          });
    }};
  });
}

template <class T>
void rms_norm_row(const RowNormPlan& p, const ir::RunArgs& args, int64_t row) {
  const T *x = in_ptr<T>(args, 0) + row * p.n, *scale = in_ptr<T>(args, 1);
  T* y = out_ptr<T>(args, 0) + row * p.n;
  double squares = 0;
  for (int64_t i = 0; i < p.n; ++i) squares += double(x[i]) * double(x[i]);
  const double inverse = 1 / std::sqrt(squares / double(p.n) + p.epsilon);
  for (int64_t i = 0; i < p.n; ++i) {
    y[i] = T(double(x[i]) * inverse * double(scale[p.scale_at[static_cast<size_t>(i)]]));
  }
}

ir::BoundKernel prepare_rms_norm(const ir::KernelInit& init) {
  const auto plan = plan_rows(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      cpu::pool_of(args.stream)
          .for_range(plan->rows, grain_for(4.0 * double(plan->n)), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) rms_norm_row<T>(*plan, args, row);
          });
    }};
  });
}

/// Scale and bias must hold one value per normalised column.
ir::Refusal refuse_row_norm_vector(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  const Dims x = node.in_dims(0);
  const size_t axis = ir::normal_axis(node.attrs.get_int("axis", -1), x.size());
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (!node.present(i)) continue;
    if (auto why = refuse_dtype(node, i, {tensor::DType::f32})) return why;
    if (i > 0 && tensor::element_count(node.in_dims(i)) != product(x, axis, x.size())) {
      return base::concat("operand ", i, " broadcasts over the normalised axes");
    }
  }
  return std::nullopt;
}

ir::BoundKernel prepare_row_norm_vector(const ir::KernelInit& init, bool rms) {
  const Dims x = init.node.in_dims(0);
  const size_t axis = ir::normal_axis(init.node.attrs.get_int("axis", -1), x.size());
  const cpu::LayerNorm norm{.x = nullptr,
                            .y = nullptr,
                            .rows = product(x, 0, axis),
                            .cols = product(x, axis, x.size()),
                            .eps = static_cast<float>(init.node.attrs.get_float("epsilon", 1e-5))};
  const size_t in_count = init.node.in.size(), out_count = init.node.out.size();
  return {[=](const ir::RunArgs& args) {
    cpu::LayerNorm call = norm;
    call.x = in_ptr<float>(args, 0);
    call.y = out_ptr<float>(args, 0);
    call.scale = in_ptr<float>(args, 1);
    call.bias = opt_ptr<float>(args, 2, in_count);
    if (out_count > 1) call.mean_out = out_ptr<float>(args, 1);
    if (out_count > 2) call.inverse_out = out_ptr<float>(args, 2);
    if (rms) {
      cpu::rms_norm(call, cpu::pool_of(args.stream));
    } else {
      cpu::layer_norm(call, cpu::pool_of(args.stream));
    }
  }};
}

ir::Kernel vector_norm(bool rms) {
  return {.name = "vector",
          .refuse = refuse_row_norm_vector,
          .prepare = [rms](const ir::KernelInit& init) { return prepare_row_norm_vector(init, rms); },
          .may_overwrite = 1};
}

}  // namespace

std::vector<ir::Kernel> layer_norm_cpu_kernels() {
  return faster({vector_norm(false)}, float_reference(prepare_layer_norm));
}
std::vector<ir::Kernel> rms_norm_cpu_kernels() {
  return faster({vector_norm(true)}, float_reference(prepare_rms_norm));
}

}  // namespace trireme::ops
