// Reference kernels of batch, instance, group, Lp, mean-variance and local response normalisation on CPU.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/elementwise/unary_ops.h"
#include "backend/cpu/norm/norm_rows.h"
#include "ops/kernel_forms.h"
#include "ops/norm/norm_kernels.h"
#include "ops/norm/planes.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

struct BatchNormPlan {
  Planes planes;
  double epsilon, momentum;
  bool training;
};

/// Mean and population variance of channel c over the batch, in double.
template <class T>
std::pair<double, double> channel_statistics(const T* x, const Planes& p, int64_t c) {
  const double count = double(p.batch * p.points);
  double sum = 0, squares = 0;
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t i = 0; i < p.points; ++i) sum += double(x[(n * p.channels + c) * p.points + i]);
  }
  const double mean = sum / count;
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t i = 0; i < p.points; ++i) {
      const double d = double(x[(n * p.channels + c) * p.points + i]) - mean;
      squares += d * d;
    }
  }
  return {mean, squares / count};
}

template <class T>
void batch_norm_channel(const BatchNormPlan& p, const ir::RunArgs& args, size_t out_count, int64_t c) {
  const T* x = in_ptr<T>(args, 0);
  double mean = double(in_ptr<T>(args, 3)[c]), var = double(in_ptr<T>(args, 4)[c]);
  double new_mean = mean, new_var = var;  // outside training, running statistics do not change
  if (p.training) {
    const double keep = p.momentum;
    const auto [of_mean, of_var] = channel_statistics(x, p.planes, c);
    new_mean = mean * keep + of_mean * (1 - keep);
    new_var = var * keep + of_var * (1 - keep);
    mean = of_mean;
    var = of_var;
  }
  if (out_count > 1 && args.out[1] != nullptr) out_ptr<T>(args, 1)[c] = T(new_mean);
  if (out_count > 2 && args.out[2] != nullptr) out_ptr<T>(args, 2)[c] = T(new_var);
  const double factor = double(in_ptr<T>(args, 1)[c]) / std::sqrt(var + p.epsilon);
  const T a = T(factor), b = T(double(in_ptr<T>(args, 2)[c]) - mean * factor);
  for (int64_t n = 0; n < p.planes.batch; ++n) {
    const int64_t at = (n * p.planes.channels + c) * p.planes.points;
    for (int64_t i = 0; i < p.planes.points; ++i) out_ptr<T>(args, 0)[at + i] = x[at + i] * a + b;
  }
}

ir::BoundKernel prepare_batch_norm(const ir::KernelInit& init) {
  const ir::Attrs& a = init.node.attrs;
  const BatchNormPlan plan{planes_of(init.node.in_dims(0)), a.get_float("epsilon", 1e-5),
                           a.get_float("momentum", 0.9), a.get_int("training_mode", 0) != 0};
  const size_t out_count = init.node.out.size();
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan, out_count](const ir::RunArgs& args) {
      const int64_t grain = grain_for(double(plan.planes.batch * plan.planes.points));
      cpu::pool_of(args.stream).for_range(plan.planes.channels, grain, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) batch_norm_channel<T>(plan, args, out_count, c);
      });
    }};
  });
}

/// `channels` planes of `points` values with common statistics.
struct GroupBlock {
  int64_t channels, points;
  double epsilon;
};

/// Normalises one block of `channels` planes of an image, then scales each plane with its channel's factor.
template <class T>
void norm_block(const T* x, T* y, const GroupBlock& block, const T* scale, const T* bias) {
  const auto [channels, points, epsilon] = block;
  const int64_t n = channels * points;
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]);
  const double mean = sum / double(n);
  for (int64_t i = 0; i < n; ++i) squares += (double(x[i]) - mean) * (double(x[i]) - mean);
  const double inverse = 1 / std::sqrt(squares / double(n) + epsilon);
  for (int64_t c = 0; c < channels; ++c) {
    const double factor = inverse * double(scale[c]), offset = double(bias[c]);
    for (int64_t i = c * points; i < (c + 1) * points; ++i) y[i] = T((double(x[i]) - mean) * factor + offset);
  }
}

/// Instance norm is group norm with one channel per group.
PrepareFn prepare_groups(bool per_channel) {
  return [per_channel](const ir::KernelInit& init) {
    const Planes p = planes_of(init.node.in_dims(0));
    const int64_t groups = per_channel ? p.channels : init.node.attrs.need_int("num_groups");
    const double epsilon = init.node.attrs.get_float("epsilon", 1e-5);
    return visit_float(init.node.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      return ir::BoundKernel{[=](const ir::RunArgs& args) {
        const int64_t each = p.channels / groups;
        cpu::pool_of(args.stream).run(p.batch * groups, [&](int64_t i) {
          const int64_t at = i * each * p.points, c = i % groups * each;
          norm_block<T>(in_ptr<T>(args, 0) + at, out_ptr<T>(args, 0) + at, {each, p.points, epsilon},
                        in_ptr<T>(args, 1) + c, in_ptr<T>(args, 2) + c);
        });
      }};
    });
  };
}

ir::Refusal refuse_vector(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  return refuse_dtype(node, 0, {tensor::DType::f32});
}

ir::Kernel vector_groups(bool per_channel) {
  auto prepare = [per_channel](const ir::KernelInit& init) {
    const Planes p = planes_of(init.node.in_dims(0));
    const cpu::GroupNorm norm{.x = nullptr,
                              .y = nullptr,
                              .batch = p.batch,
                              .channels = p.channels,
                              .inner = p.points,
                              .groups = per_channel ? p.channels : init.node.attrs.need_int("num_groups"),
                              .eps = static_cast<float>(init.node.attrs.get_float("epsilon", 1e-5))};
    return ir::BoundKernel{[norm](const ir::RunArgs& args) {
      cpu::GroupNorm call = norm;
      call.x = in_ptr<float>(args, 0);
      call.y = out_ptr<float>(args, 0);
      call.scale = in_ptr<float>(args, 1);
      call.bias = in_ptr<float>(args, 2);
      cpu::group_norm(call, cpu::pool_of(args.stream));
    }};
  };
  return {.name = "vector", .refuse = refuse_vector, .prepare = prepare, .may_overwrite = 1};
}

ir::Refusal refuse_folded(const ir::NodeView& node) {
  for (size_t i = 1; i < node.out.size(); ++i) {
    if (node.out[i].shape.rank() > 0)
      return "running statistics are results";  // a result that nobody reads has no rank
  }
  if (node.attrs.get_int("training_mode", 0) != 0) return "training_mode takes the statistics of the batch";
  return refuse_vector(node);
}

/// Inference: scale and shift per channel, folded in every run because statistics may be state.
ir::BoundKernel prepare_folded(const ir::KernelInit& init) {
  const Planes p = planes_of(init.node.in_dims(0));
  const float epsilon = static_cast<float>(init.node.attrs.get_float("epsilon", 1e-5));
  auto run = [p, epsilon](const ir::RunArgs& args) {
    float* scale = static_cast<float*>(args.workspace);
    float* bias = scale + p.channels;
    cpu::fold_batch_norm({.gamma = in_ptr<float>(args, 1),
                          .beta = in_ptr<float>(args, 2),
                          .mean = in_ptr<float>(args, 3),
                          .variance = in_ptr<float>(args, 4),
                          .eps = epsilon},
                         p.channels, scale, bias);
    const cpu::ChannelAffine call{.x = in_ptr<float>(args, 0),
                                  .y = out_ptr<float>(args, 0),
                                  .scale = scale,
                                  .bias = bias,
                                  .outer = p.batch,
                                  .channels = p.channels,
                                  .inner = p.points};
    cpu::channel_affine(call, cpu::pool_of(args.stream));
  };
  return {run, p.channels * 8};
}

ir::BoundKernel prepare_lp_norm(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0);
  const AxisLoops loops = axis_loops(x, ir::normal_axis(init.node.attrs.get_int("axis", -1), x.size()));
  const bool squares = init.node.attrs.get_int("p", 2) == 2;
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[loops, squares](const ir::RunArgs& args) {
      const int64_t grain = grain_for(3.0 * double(loops.n));
      cpu::pool_of(args.stream).for_range(loops.outer * loops.inner, grain, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const int64_t at = line / loops.inner * loops.n * loops.inner + line % loops.inner;
          const T* from = in_ptr<T>(args, 0) + at;
          T* to = out_ptr<T>(args, 0) + at;
          double sum = 0;
          for (int64_t i = 0; i < loops.n; ++i) {
            const double v = double(from[i * loops.inner]);
            sum += squares ? v * v : std::abs(v);
          }
          const double norm = squares ? std::sqrt(sum) : sum;
          for (int64_t i = 0; i < loops.n; ++i) {
            to[i * loops.inner] = norm == 0 ? T(0) : T(double(from[i * loops.inner]) / norm);
          }
        }
      });
    }};
  });
}

/// Offsets along the reduced and the kept axes: the elements of a tensor are at kept[i] + reduced[j].
struct SplitAxes {
  std::vector<int64_t> kept{0}, reduced{0};
};

void extend(std::vector<int64_t>& offsets, int64_t extent, int64_t stride) {
  std::vector<int64_t> longer;
  for (int64_t offset : offsets) {
    for (int64_t i = 0; i < extent; ++i) longer.push_back(offset + i * stride);
  }
  offsets = std::move(longer);
}

SplitAxes split_axes(const ir::NodeView& node) {
  const Dims x = node.in_dims(0);
  std::vector<bool> is_reduced(x.size(), false);
  for (int64_t axis : node.attrs.get_ints("axes", {0, 2, 3}))
    is_reduced[ir::normal_axis(axis, x.size())] = true;
  SplitAxes split;
  for (size_t i = 0; i < x.size(); ++i) {
    extend(is_reduced[i] ? split.reduced : split.kept, x[i], product(x, i + 1, x.size()));
  }
  return split;
}

ir::BoundKernel prepare_mean_variance(const ir::KernelInit& init) {
  const auto split = std::make_shared<const SplitAxes>(split_axes(init.node));
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[split](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(static_cast<int64_t>(split->kept.size()), [&](int64_t k) {
        const T* x = in_ptr<T>(args, 0) + split->kept[static_cast<size_t>(k)];
        T* y = out_ptr<T>(args, 0) + split->kept[static_cast<size_t>(k)];
        double sum = 0, squares = 0;
        for (int64_t at : split->reduced) sum += double(x[at]);
        const double n = double(split->reduced.size()), mean = sum / n;
        for (int64_t at : split->reduced) squares += (double(x[at]) - mean) * (double(x[at]) - mean);
        const double inverse = 1 / (std::sqrt(squares / n) + 1e-9);
        for (int64_t at : split->reduced) y[at] = T((double(x[at]) - mean) * inverse);
      });
    }};
  });
}

template <class T>
void lrn_plane(const LrnPlan& p, const T* x, T* y, int64_t plane) {
  const int64_t c = plane % p.planes.channels, first = std::max<int64_t>(0, c - (p.size - 1) / 2);
  const int64_t last = std::min(p.planes.channels, c + p.size / 2 + 1), points = p.planes.points;
  const T* image = x + (plane - c) * points;
  for (int64_t i = 0; i < points; ++i) {
    double sum = 0;
    for (int64_t j = first; j < last; ++j)
      sum += double(image[j * points + i]) * double(image[j * points + i]);
    const double base = p.bias + p.alpha / double(p.size) * sum;
    y[plane * points + i] = T(double(image[c * points + i]) / std::pow(base, p.beta));
  }
}

ir::BoundKernel prepare_lrn(const ir::KernelInit& init) {
  const LrnPlan plan = plan_lrn(init.node, 0);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(plan.planes.batch * plan.planes.channels, [&](int64_t i) {
        lrn_plane<T>(plan, in_ptr<T>(args, 0), out_ptr<T>(args, 0), i);
      });
    }};
  });
}

/// Points [begin, begin + n) of all channels of an image: sums of squares, the power, the product.
void lrn_block(const LrnPlan& p, const float* x, float* y, int64_t begin, int64_t n) {
  constexpr int64_t kBlock = 512;
  const cpu::UnaryTile power = cpu::unary_tile(cpu::UnaryOp::pow_scalar_);
  const float scale = static_cast<float>(p.alpha / double(p.size)), bias = static_cast<float>(p.bias);
  const cpu::UnaryParams exponent{static_cast<float>(-p.beta), 0};
  const int64_t points = p.planes.points;
  float sum[kBlock];
  for (int64_t c = 0; c < p.planes.channels; ++c) {
    const int64_t first = std::max<int64_t>(0, c - (p.size - 1) / 2);
    const int64_t last = std::min(p.planes.channels, c + p.size / 2 + 1);
    std::fill_n(sum, n, 0.0f);
    for (int64_t j = first; j < last; ++j) {
      const float* from = x + j * points + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] += from[i] * from[i];
    }
    for (int64_t i = 0; i < n; ++i) sum[i] = bias + scale * sum[i];
    if (p.beta == 0.75) {  // the usual value in published networks
      for (int64_t i = 0; i < n; ++i) {
        const float root = std::sqrt(sum[i]);
        sum[i] = 1.0f / (root * std::sqrt(root));
      }
    } else {
      power(sum, sum, static_cast<size_t>(n), exponent);
    }
    const float* from = x + c * points + begin;
    float* to = y + c * points + begin;
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] * sum[i];
  }
}

ir::Kernel vector_lrn() {
  auto prepare = [](const ir::KernelInit& init) -> ir::BoundKernel {
    const LrnPlan plan = plan_lrn(init.node, 0);
    return {[plan](const ir::RunArgs& args) {
      constexpr int64_t kBlock = 512;
      const Planes& p = plan.planes;
      const int64_t blocks = (p.points + kBlock - 1) / kBlock;
      cpu::pool_of(args.stream).run(p.batch * blocks, [&](int64_t b) {
        const int64_t image = b / blocks * p.channels * p.points, begin = b % blocks * kBlock;
        lrn_block(plan, in_ptr<float>(args, 0) + image, out_ptr<float>(args, 0) + image, begin,
                  std::min(kBlock, p.points - begin));
      });
    }};
  };
  return {.name = "vector", .refuse = refuse_vector, .prepare = prepare};
}

}  // namespace

std::vector<ir::Kernel> batch_norm_cpu_kernels() {
  const ir::Kernel folded{
      .name = "folded", .refuse = refuse_folded, .prepare = prepare_folded, .may_overwrite = 1};
  return faster({folded}, float_reference(prepare_batch_norm));
}
std::vector<ir::Kernel> instance_norm_cpu_kernels() {
  return faster({vector_groups(true)}, float_reference(prepare_groups(true)));
}
std::vector<ir::Kernel> group_norm_cpu_kernels() {
  return faster({vector_groups(false)}, float_reference(prepare_groups(false)));
}
std::vector<ir::Kernel> lp_norm_cpu_kernels() { return float_reference(prepare_lp_norm); }
std::vector<ir::Kernel> mean_variance_norm_cpu_kernels() { return float_reference(prepare_mean_variance); }
std::vector<ir::Kernel> lrn_cpu_kernels() { return faster({vector_lrn()}, float_reference(prepare_lrn)); }

}  // namespace trireme::ops
