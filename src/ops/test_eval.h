// For tests of operators: evaluation by name on a small thread team, and reproducible random tensors.
#pragma once

#include <algorithm>

#include "base/rng.h"
#include "ops/table.h"

namespace trireme::ops::testing {

using tensor::DType;
using tensor::Tensor;

/// Evaluates the op `name`. The team has 3 members, so that splitting into pieces is exercised.
inline std::vector<Tensor> run(std::string_view name, const std::vector<Tensor>& in,
                               const ir::Attrs& attrs = {}, size_t results = 1) {
  base::ThreadPool pool(3);
  return evaluate(table().need(name), attrs, in, results, pool);
}

/// Evaluates with the kernel called `kernel` only, so that every kernel can be held against the oracle.
inline Tensor run_kernel(std::string_view name, std::string_view kernel, const std::vector<Tensor>& in,
                         const ir::Attrs& attrs = {}) {
  ir::OpDef op = table().need(name);
  std::erase_if(op.kernels, [&](const ir::Kernel& k) { return k.name != kernel; });
  base::ThreadPool pool(3);
  return evaluate(op, attrs, in, 1, pool)[0];
}

/// Uniform values in [low, high), cut to the element type.
inline Tensor random_tensor(DType dtype, tensor::Dims dims, double low, double high, uint64_t seed = 1) {
  Tensor t = Tensor::empty(dtype, std::move(dims));
  base::Rng rng(seed);
  tensor::visit_dtype(dtype, [&](auto zero) {
    for (auto& v : t.mutable_data<decltype(zero)>())
      v = static_cast<decltype(zero)>(low + (high - low) * rng.uniform());
  });
  return t;
}

/// Uniform f64 values in [-1, 1): operands of gradients, which are held against finite differences, and of
/// cuts.
inline Tensor values(tensor::Dims dims, uint64_t seed = 1) {
  return random_tensor(DType::f64, std::move(dims), -1, 1, seed);
}

/// The values of t in another type, as the op cast_like converts them.
inline Tensor as_type(const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  base::ThreadPool pool(1);
  return evaluate(table().need("cast_like"), {}, {t, Tensor::empty(dtype, {1})}, 1, pool)[0];
}

inline Tensor ints(std::vector<int64_t> values) {
  const int64_t n = static_cast<int64_t>(values.size());
  return Tensor::from<int64_t>({n}, std::span<const int64_t>(values));
}

/// Kernels for the CPU.
inline size_t cpu_kernel_count(const ir::OpDef& op) {
  return static_cast<size_t>(std::count_if(op.kernels.begin(), op.kernels.end(), [](const ir::Kernel& k) {
    return k.on == tensor::DeviceKind::cpu;
  }));
}

}  // namespace trireme::ops::testing
