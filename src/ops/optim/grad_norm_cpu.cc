// Kernels of global_norm, all_finite and clip_coefficient on CPU.
#include <algorithm>
#include <cmath>

#include "ops/optim/update_pieces_cpu.h"

namespace trireme::ops {
namespace {

using SharedPieces = std::shared_ptr<const PiecePlan>;

/// All operands are tensors to sum over.
SharedPieces pieces_of(const ir::NodeView& node) {
  std::vector<int64_t> elements;
  for (size_t i = 0; i < node.in.size(); ++i) elements.push_back(tensor::element_count(node.in_dims(i)));
  return std::make_shared<const PiecePlan>(elements);
}

/// One double a piece and one a tensor.
int64_t sums_bytes(const PiecePlan& plan) {
  return static_cast<int64_t>(sizeof(double) * (plan.pieces().size() + plan.tensors()));
}

/// sum of x^2 of every operand: pieces by halves within a tensor, then tensors by halves. Leaves it in f64.
template <class T>
double total_squares(const PiecePlan& plan, const ir::RunArgs& args) {
  double* sums = static_cast<double*>(args.workspace);
  double* by_tensor = sums + plan.pieces().size();
  plan.run(cpu::pool_of(args.stream), [&](size_t i, const Piece& p) {
    sums[i] = cpu::sum_squares(in_ptr<T>(args, p.tensor) + p.begin, p.size());
  });
  for (size_t t = 0; t < plan.tensors(); ++t)
    by_tensor[t] = pairwise_sum(sums + plan.first(t), plan.first(t + 1) - plan.first(t));
  return pairwise_sum(by_tensor, plan.tensors());
}

ir::BoundKernel prepare_norm(const ir::KernelInit& init) {
  const SharedPieces plan = pieces_of(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
                             const double squares = total_squares<T>(*plan, args);
                             *out_ptr<float>(args, 0) = static_cast<float>(std::sqrt(squares));
                           },
                           sums_bytes(*plan)};
  });
}

/// False if any element is infinite or NaN.
template <class T>
bool piece_is_finite(const T* x, int64_t n) {
  // f32 squares cannot overflow f64; f64 squares can.
  if constexpr (sizeof(T) == 4) return std::isfinite(cpu::sum_squares(x, n));
  return std::all_of(x, x + n, [](T v) { return std::isfinite(v); });
}

ir::BoundKernel prepare_all_finite(const ir::KernelInit& init) {
  const SharedPieces plan = pieces_of(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
                             double* bad = static_cast<double*>(args.workspace);
                             plan->run(cpu::pool_of(args.stream), [&](size_t i, const Piece& p) {
                               bad[i] =
                                   piece_is_finite(in_ptr<T>(args, p.tensor) + p.begin, p.size()) ? 0 : 1;
                             });
                             *out_ptr<bool>(args, 0) = std::all_of(bad, bad + plan->pieces().size(),
                                                                   [](double b) { return b == 0; });
                           },
                           sums_bytes(*plan)};
  });
}

/// Not above its limit; a NaN is above every limit.
bool within(const ir::RunArgs& args, size_t limit, double value) {
  return args.in[limit] == nullptr || value <= static_cast<double>(*in_ptr<float>(args, limit));
}

/// Operands: norm, grad_scale?, norm_limit?, loss?, loss_limit?; results: factor, skip, unscaled norm.
ir::BoundKernel prepare_clip(const ir::KernelInit& init) {
  const double max_norm = init.node.attrs.get_float("max_norm", 0);
  const double eps = init.node.attrs.get_float("epsilon", 1e-6);
  const bool skip_nonfinite = init.node.attrs.get_int("skip_nonfinite", 1) != 0;
  const size_t operands = init.node.in.size(), results = init.node.out.size();
  return {[=](const ir::RunArgs& all) {
    const void* in[5] = {};
    std::copy_n(all.in, operands, in);
    const ir::RunArgs args{in, all.out, all.workspace, all.stream, all.status};
    const double scale = scalar_of(in[1], tensor::DType::f32, 1);
    const double norm = static_cast<double>(*in_ptr<float>(args, 0)) * scale;
    const double coefficient = max_norm > 0 ? std::min(1.0, max_norm / (norm + eps)) : 1.0;
    *out_ptr<float>(args, 0) = static_cast<float>(coefficient * scale);
    const double loss = scalar_of(in[3], tensor::DType::f32, 0);
    const bool is_finite = std::isfinite(norm) && std::isfinite(loss);
    const bool too_big = !within(args, 2, norm) || !within(args, 4, loss);
    if (results > 1 && all.out[1] != nullptr) {
      // What is not finite is the business of skip_nonfinite, not of the limits.
      *out_ptr<bool>(args, 1) = is_finite ? too_big : skip_nonfinite;
    }
    if (results > 2 && all.out[2] != nullptr) *out_ptr<float>(args, 2) = static_cast<float>(norm);
  }};
}

std::vector<ir::Kernel> one(const char* name, PrepareFn prepare) {
  return {{.name = name, .refuse = {}, .prepare = std::move(prepare)}};
}

}  // namespace

std::vector<ir::Kernel> global_norm_cpu_kernels() { return one("vector", prepare_norm); }
std::vector<ir::Kernel> all_finite_cpu_kernels() { return one("vector", prepare_all_finite); }
std::vector<ir::Kernel> clip_coefficient_cpu_kernels() { return one("scalar", prepare_clip); }

}  // namespace trireme::ops
