// Kernels of layer_norm_grad, rms_norm_grad and lrn_grad on CPU.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/norm/norm_grad.h"
#include "ops/kernel_forms.h"
#include "ops/norm/norm_kernels.h"
#include "ops/norm/planes.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

struct RowGradPlan {
  int64_t rows, cols;
  double epsilon;
  bool rms;
  size_t in_count, out_count;
};

RowGradPlan plan_grad_rows(const ir::NodeView& node, bool rms) {
  const Dims x = node.in_dims(1);
  const size_t axis = ir::normal_axis(node.attrs.get_int("axis", -1), x.size());
  return {product(x, 0, axis),
          product(x, axis, x.size()),
          node.attrs.get_float("epsilon", 1e-5),
          rms,
          node.in.size(),
          node.out.size()};
}

template <class T>
T* opt_out(const RowGradPlan& p, const ir::RunArgs& args, size_t i) {
  return i < p.out_count ? out_ptr<T>(args, i) : nullptr;
}

PrepareFn prepare_row_grad_vector(bool rms) {
  return [rms](const ir::KernelInit& init) {
    const RowGradPlan plan = plan_grad_rows(init.node, rms);
    auto run = [plan](const ir::RunArgs& args) {
      cpu::norm_grad({.dy = in_ptr<float>(args, 0),
                      .x = in_ptr<float>(args, 1),
                      .scale = opt_ptr<float>(args, 2, plan.in_count),
                      .add = opt_ptr<float>(args, 3, plan.in_count),
                      .dx = out_ptr<float>(args, 0),
                      .dscale = opt_out<float>(plan, args, 1),
                      .dbias = opt_out<float>(plan, args, 2),
                      .rows = plan.rows,
                      .cols = plan.cols,
                      .eps = static_cast<float>(plan.epsilon),
                      .rms = plan.rms,
                      .workspace = args.workspace},
                     cpu::pool_of(args.stream));
    };
    return ir::BoundKernel{run, cpu::norm_grad_workspace(plan.rows, plan.cols)};
  };
}

/// Computes dx of one row; stores its mean and 1 / deviation.
template <class T>
void reference_row(const RowGradPlan& p, const ir::RunArgs& args, int64_t row, double* moments) {
  const T *dy = in_ptr<T>(args, 0) + row * p.cols, *x = in_ptr<T>(args, 1) + row * p.cols;
  const T *scale = opt_ptr<T>(args, 2, p.in_count), *add = opt_ptr<T>(args, 3, p.in_count);
  const double n = double(p.cols);
  double mean = 0, squares = 0, plain = 0, along = 0;
  for (int64_t i = 0; i < p.cols && !p.rms; ++i) mean += double(x[i]) / n;
  for (int64_t i = 0; i < p.cols; ++i) squares += (double(x[i]) - mean) * (double(x[i]) - mean);
  const double inverse = 1 / std::sqrt(squares / n + p.epsilon);
  const auto up = [&](int64_t i) { return double(dy[i]) * (scale == nullptr ? 1.0 : double(scale[i])); };
  const auto normal = [&](int64_t i) { return (double(x[i]) - mean) * inverse; };
  for (int64_t i = 0; i < p.cols; ++i) {
    plain += p.rms ? 0 : up(i) / n;
    along += up(i) * normal(i) / n;
  }
  for (int64_t i = 0; i < p.cols; ++i) {
    const double dx = inverse * (up(i) - plain - normal(i) * along);
    out_ptr<T>(args, 0)[row * p.cols + i] = T(dx + (add == nullptr ? 0 : double(add[row * p.cols + i])));
  }
  moments[0] = mean;
  moments[1] = inverse;
}

template <class T>
void reference_columns(const RowGradPlan& p, const ir::RunArgs& args, const double* moments) {
  T *dscale = opt_out<T>(p, args, 1), *dbias = opt_out<T>(p, args, 2);
  cpu::pool_of(args.stream).for_range(p.cols, 64, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double scale = 0, bias = 0;
      for (int64_t row = 0; row < p.rows; ++row) {
        const double dy = double(in_ptr<T>(args, 0)[row * p.cols + c]);
        const double x = double(in_ptr<T>(args, 1)[row * p.cols + c]);
        scale += dy * (x - moments[2 * row]) * moments[2 * row + 1];
        bias += dy;
      }
      if (dscale != nullptr) dscale[c] = T(scale);
      if (dbias != nullptr) dbias[c] = T(bias);
    }
  });
}

PrepareFn prepare_row_grad_reference(bool rms) {
  return [rms](const ir::KernelInit& init) {
    const RowGradPlan plan = plan_grad_rows(init.node, rms);
    return visit_float(init.node.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      auto run = [plan](const ir::RunArgs& args) {
        double* moments = static_cast<double*>(args.workspace);  // [rows, 2]
        cpu::pool_of(args.stream).run(plan.rows, [&](int64_t row) {
          reference_row<T>(plan, args, row, moments + 2 * row);
        });
        reference_columns<T>(plan, args, moments);
      };
      return ir::BoundKernel{run, plan.rows * 16};
    });
  };
}

ir::Refusal refuse_row_grad_vector(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (!node.present(i)) continue;
    if (auto why = refuse_dtype(node, i, {tensor::DType::f32})) return why;
  }
  return std::nullopt;
}

std::vector<ir::Kernel> row_norm_kernels(bool rms) {
  // At each place, dx is written after the last reads of dy, x and add.
  const ir::Kernel vector{.name = "vector",
                          .refuse = refuse_row_grad_vector,
                          .prepare = prepare_row_grad_vector(rms),
                          .may_overwrite = 0b1011};
  return faster({vector}, float_reference(prepare_row_grad_reference(rms)));
}

/// One point of one image: all channels, which are `points` apart.
template <class T>
void lrn_point(const LrnPlan& p, const T* dy, const T* x, T* dx) {
  const auto at = [&](int64_t c) { return c * p.planes.points; };
  const int64_t before = (p.size - 1) / 2, after = p.size / 2;
  const auto base = [&](int64_t c) {
    double sum = 0;
    for (int64_t j = std::max<int64_t>(0, c - before); j <= std::min(p.planes.channels - 1, c + after); ++j)
      sum += double(x[at(j)]) * double(x[at(j)]);
    return p.bias + p.alpha / double(p.size) * sum;
  };
  for (int64_t c = 0; c < p.planes.channels; ++c) {
    double sum = 0;
    // Channel j reads j - before ... j + after, so c lies in the windows of channels c - after ... c +
    // before.
    for (int64_t j = std::max<int64_t>(0, c - after); j <= std::min(p.planes.channels - 1, c + before); ++j)
      sum += double(dy[at(j)]) * double(x[at(j)]) * std::pow(base(j), -p.beta - 1);
    dx[at(c)] = T(double(dy[at(c)]) * std::pow(base(c), -p.beta) -
                  2 * p.alpha * p.beta / double(p.size) * double(x[at(c)]) * sum);
  }
}

ir::BoundKernel prepare_lrn_grad(const ir::KernelInit& init) {
  const LrnPlan plan = plan_lrn(init.node, 1);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      const Planes& p = plan.planes;
      const int64_t grain = grain_for(100.0 * double(p.channels * plan.size));
      cpu::pool_of(args.stream).for_range(p.batch * p.points, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t at = i / p.points * p.channels * p.points + i % p.points;
          lrn_point<T>(plan, in_ptr<T>(args, 0) + at, in_ptr<T>(args, 1) + at, out_ptr<T>(args, 0) + at);
        }
      });
    }};
  });
}

}  // namespace

std::vector<ir::Kernel> layer_norm_grad_cpu_kernels() { return row_norm_kernels(false); }
std::vector<ir::Kernel> rms_norm_grad_cpu_kernels() { return row_norm_kernels(true); }
std::vector<ir::Kernel> lrn_grad_cpu_kernels() { return float_reference(prepare_lrn_grad); }

}  // namespace trireme::ops
