// Kernels of batch_norm_train and batch_norm_grad on CPU.
#include <algorithm>
#include <cmath>

#include "backend/cpu/norm/batch_norm_train.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/kernel_forms.h"
#include "ops/norm/norm_kernels.h"

namespace trireme::ops {
namespace {

using tensor::DType;

struct BatchNormTrainPlan {
  cpu::ChannelShape shape;
  double epsilon;
  bool relu;
  size_t in_count, out_count;
  int64_t spare_at;  // three channel vectors for results that are not asked for
  int64_t bytes;
};

/// `x` is the index of the operand that is normalised.
BatchNormTrainPlan plan_batch_norm(const ir::NodeView& node, size_t x) {
  const tensor::Dims dims = node.in_dims(x);
  const AxisLoops loops = axis_loops(dims, ir::normal_axis(node.attrs.get_int("axis", 1), dims.size()));
  BatchNormTrainPlan p{.shape = {loops.outer, loops.n, loops.inner},
                       .epsilon = node.attrs.get_float("epsilon", 1e-5),
                       .relu = node.attrs.get_string("activation", "none") == "relu",
                       .in_count = node.in.size(),
                       .out_count = node.out.size()};
  p.spare_at = align_up(cpu::batch_norm_workspace(p.shape));
  p.bytes = p.spare_at + 3 * loops.n * 8;
  return p;
}

/// Result i, or a spare vector in the workspace; the spare vectors of results 1, 2, 3 are consecutive.
template <class T>
T* result(const BatchNormTrainPlan& p, const ir::RunArgs& args, size_t i) {
  if (i < p.out_count && args.out[i] != nullptr) return out_ptr<T>(args, i);
  T* spare = reinterpret_cast<T*>(static_cast<std::byte*>(args.workspace) + p.spare_at);
  return spare + static_cast<int64_t>(i - 1) * p.shape.channels;
}

ir::BoundKernel prepare_train_vector(const ir::KernelInit& init) {
  const BatchNormTrainPlan plan = plan_batch_norm(init.node, 0);
  auto run = [plan](const ir::RunArgs& args) {
    cpu::batch_norm_train({.shape = plan.shape,
                           .x = in_ptr<float>(args, 0),
                           .scale = in_ptr<float>(args, 1),
                           .bias = in_ptr<float>(args, 2),
                           .residual = opt_ptr<float>(args, 3, plan.in_count),
                           .y = out_ptr<float>(args, 0),
                           .mean = result<float>(plan, args, 1),
                           .inv_std = result<float>(plan, args, 2),
                           .variance_unbiased = result<float>(plan, args, 3),
                           .eps = plan.epsilon,
                           .relu = plan.relu,
                           .workspace = args.workspace},
                          cpu::pool_of(args.stream));
  };
  return {run, plan.bytes};
}

ir::BoundKernel prepare_vector_grad(const ir::KernelInit& init) {
  const BatchNormTrainPlan plan = plan_batch_norm(init.node, 1);
  auto run = [plan](const ir::RunArgs& args) {
    cpu::batch_norm_grad({.shape = plan.shape,
                          .dy = in_ptr<float>(args, 0),
                          .dy_more = opt_ptr<float>(args, 7, plan.in_count),
                          .x = in_ptr<float>(args, 1),
                          .scale = in_ptr<float>(args, 2),
                          .bias = in_ptr<float>(args, 3),
                          .mean = in_ptr<float>(args, 4),
                          .inv_std = in_ptr<float>(args, 5),
                          .y = opt_ptr<float>(args, 6, plan.in_count),
                          .dx = out_ptr<float>(args, 0),
                          .dscale = result<float>(plan, args, 1),
                          .dbias = result<float>(plan, args, 2),
                          .dresidual = plan.out_count > 3 ? out_ptr<float>(args, 3) : nullptr,
                          .relu = plan.relu,
                          .workspace = args.workspace},
                         cpu::pool_of(args.stream));
  };
  return {run, plan.bytes};
}

/// Calls f(element) for the values of channel c.
template <class F>
void over_channel(const cpu::ChannelShape& s, int64_t c, const F& f) {
  for (int64_t o = 0; o < s.outer; ++o) {
    for (int64_t i = 0; i < s.inner; ++i) f((o * s.channels + c) * s.inner + i);
  }
}

template <class T>
void reference_channel(const BatchNormTrainPlan& p, const ir::RunArgs& args, int64_t c) {
  const T *x = in_ptr<T>(args, 0), *residual = opt_ptr<T>(args, 3, p.in_count);
  const double n = double(p.shape.count());
  double sum = 0, squares = 0;
  over_channel(p.shape, c, [&](int64_t e) { sum += double(x[e]); });
  const double mean = sum / n;
  over_channel(p.shape, c, [&](int64_t e) { squares += (double(x[e]) - mean) * (double(x[e]) - mean); });
  const double inverse = 1 / std::sqrt(squares / n + p.epsilon);
  const double factor = double(in_ptr<T>(args, 1)[c]) * inverse;
  over_channel(p.shape, c, [&](int64_t e) {
    double v = (double(x[e]) - mean) * factor + double(in_ptr<T>(args, 2)[c]);
    if (residual != nullptr) v += double(residual[e]);
    out_ptr<T>(args, 0)[e] = T(p.relu && v < 0 ? 0 : v);
  });
  result<T>(p, args, 1)[c] = T(mean);
  result<T>(p, args, 2)[c] = T(inverse);
  result<T>(p, args, 3)[c] = T(squares / std::max(1.0, n - 1));
}

template <class T>
void reference_grad_channel(const BatchNormTrainPlan& p, const ir::RunArgs& args, int64_t c) {
  const T *dy = in_ptr<T>(args, 0), *x = in_ptr<T>(args, 1), *y = opt_ptr<T>(args, 6, p.in_count);
  const T* more = opt_ptr<T>(args, 7, p.in_count);
  const double n = double(p.shape.count()), scale = double(in_ptr<T>(args, 2)[c]);
  const double bias = double(in_ptr<T>(args, 3)[c]), mean = double(in_ptr<T>(args, 4)[c]);
  const double inverse = double(in_ptr<T>(args, 5)[c]);
  const auto behind = [&](int64_t e) {
    const double before = y != nullptr ? double(y[e]) : (double(x[e]) - mean) * (scale * inverse) + bias;
    return p.relu && before <= 0 ? 0.0 : double(dy[e]) + (more == nullptr ? 0.0 : double(more[e]));
  };
  double sum = 0, product = 0;
  over_channel(p.shape, c, [&](int64_t e) {
    sum += behind(e);
    product += behind(e) * (double(x[e]) - mean) * inverse;
  });
  over_channel(p.shape, c, [&](int64_t e) {
    const double up = behind(e), normal = (double(x[e]) - mean) * inverse;
    out_ptr<T>(args, 0)[e] = T(scale * inverse * (up - sum / n - normal * product / n));
    if (p.out_count > 3 && args.out[3] != nullptr) out_ptr<T>(args, 3)[e] = T(up);
  });
  result<T>(p, args, 1)[c] = T(product);
  result<T>(p, args, 2)[c] = T(sum);
}

PrepareFn prepare_train_reference(bool gradient) {
  return [gradient](const ir::KernelInit& init) {
    const BatchNormTrainPlan plan = plan_batch_norm(init.node, gradient ? 1 : 0);
    return visit_float(init.node.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      auto run = [plan, gradient](const ir::RunArgs& args) {
        cpu::pool_of(args.stream).run(plan.shape.channels, [&](int64_t c) {
          (gradient ? reference_grad_channel<T> : reference_channel<T>)(plan, args, c);
        });
      };
      return ir::BoundKernel{run, plan.bytes};
    });
  };
}

ir::Refusal refuse_mixed(const ir::NodeView& node, DType type) {
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (!node.present(i)) continue;
    if (auto why = refuse_dtype(node, i, {type})) return why;
  }
  return std::nullopt;
}

std::vector<ir::Kernel> kernels(PrepareFn fast, bool gradient, uint32_t may_overwrite) {
  const auto refuse_vector = [](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse_empty(node)) return why;
    return refuse_mixed(node, DType::f32);
  };
  const auto refuse_reference = [](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse_non_float(node)) return why;
    return refuse_mixed(node, node.in[0].dtype);
  };
  return faster({{.name = "vector",
                  .refuse = refuse_vector,
                  .prepare = std::move(fast),
                  .may_overwrite = may_overwrite}},
                {{.name = "reference",
                  .is_reference = true,
                  .refuse = refuse_reference,
                  .prepare = prepare_train_reference(gradient)}});
}

}  // namespace

std::vector<ir::Kernel> batch_norm_train_cpu_kernels() {
  return kernels(prepare_train_vector, false, 0b1001);
}
std::vector<ir::Kernel> batch_norm_grad_cpu_kernels() { return kernels(prepare_vector_grad, true, 0b11); }

}  // namespace trireme::ops
