// CPU kernels of det (Gaussian elimination with pivoting) and einsum (each result is one sum in a fixed
// order).
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/linalg/linalg_ops.h"

namespace trireme::ops {
namespace {

double determinant(double* a, int64_t n) {
  double det = 1;
  for (int64_t c = 0; c < n; ++c) {
    int64_t pivot = c;
    for (int64_t r = c + 1; r < n; ++r) {
      if (std::fabs(a[r * n + c]) > std::fabs(a[pivot * n + c])) pivot = r;
    }
    if (a[pivot * n + c] == 0) return 0;
    if (pivot != c) {
      det = -det;
      for (int64_t k = 0; k < n; ++k) std::swap(a[pivot * n + k], a[c * n + k]);
    }
    det *= a[c * n + c];
    for (int64_t r = c + 1; r < n; ++r) {
      const double f = a[r * n + c] / a[c * n + c];
      for (int64_t k = c; k < n; ++k) a[r * n + k] -= f * a[c * n + k];
    }
  }
  return det;
}

ir::BoundKernel prepare_det(const ir::KernelInit& init) {
  const tensor::Dims x = init.node.in_dims(0);
  const int64_t n = x.back(), matrices = tensor::element_count(init.node.out_dims(0));
  return tensor::visit_dtype(init.node.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[=](const ir::RunArgs& args) {
              double* a = static_cast<double*>(args.workspace);
              for (int64_t m = 0; m < matrices; ++m) {
                const T* from = static_cast<const T*>(args.in[0]) + m * n * n;
                for (int64_t i = 0; i < n * n; ++i)
                  a[i] = static_cast<double>(static_cast<Arithmetic<T>>(from[i]));
                static_cast<T*>(args.out[0])[m] = static_cast<T>(determinant(a, n));
              }
            },
            n * n * static_cast<int64_t>(sizeof(double))};
  });
}

/// Cofactor (r, c): the signed determinant of the matrix without row r and column c. `minor` is scratch.
double cofactor(const double* a, int64_t n, int64_t r, int64_t c, double* minor) {
  double* to = minor;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      if (i != r && j != c) *to++ = a[i * n + j];
    }
  }
  return ((r + c) % 2 == 0 ? 1 : -1) * determinant(minor, n - 1);
}

/// Uses cofactors, which are exact for singular matrices too, where no inverse exists. Takes n^5 flop, for
/// the small matrices whose determinants occur in losses.
ir::BoundKernel prepare_det_grad(const ir::KernelInit& init) {
  const tensor::Dims x = init.node.in_dims(1);
  const int64_t n = x.back(), matrices = tensor::element_count(init.node.in_dims(0));
  return tensor::visit_dtype(init.node.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[=](const ir::RunArgs& args) {
              double *a = static_cast<double*>(args.workspace), *minor = a + n * n;
              for (int64_t m = 0; m < matrices; ++m) {
                const auto wide = [](T v) { return static_cast<double>(static_cast<Arithmetic<T>>(v)); };
                const T* from = static_cast<const T*>(args.in[1]) + m * n * n;
                const double dy = wide(static_cast<const T*>(args.in[0])[m]);
                for (int64_t i = 0; i < n * n; ++i) a[i] = wide(from[i]);
                T* to = static_cast<T*>(args.out[0]) + m * n * n;
                for (int64_t i = 0; i < n * n; ++i)
                  to[i] = static_cast<T>(dy * cofactor(a, n, i / n, i % n, minor));
              }
            },
            2 * n * n * static_cast<int64_t>(sizeof(double))};
  });
}

constexpr size_t kMaxOperands = 8;

/// The loops of an einsum: result dimensions outside, summed letters inside.
struct EinsumLoops {
  tensor::Dims kept, summed;
  std::vector<int64_t> kept_steps, summed_steps;  // [dimension, operand]
  size_t operands = 0;
  int64_t results = 1, terms = 1;
};

EinsumLoops loops_of(const ir::NodeView& n) {
  std::vector<tensor::Shape> shapes;
  for (const tensor::TensorType& t : n.in) shapes.push_back(t.shape);
  const EinsumPlan plan = parse_einsum(n.attrs.get_string("equation", ""), shapes);
  EinsumLoops loops;
  loops.operands = n.in.size();
  // The step of an operand along a letter: a repeated letter follows the diagonal, extents of 1 are
  // broadcast.
  const auto step = [&](size_t letter, size_t operand) {
    const tensor::Dims dims = n.in_dims(operand);
    const std::vector<int64_t> dense = dense_steps(dims);
    int64_t total = 0;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (plan.operands[operand][d] == letter && dims[d] != 1) total += dense[d];
    }
    return total;
  };
  const auto add = [&](size_t letter, tensor::Dims& extents, std::vector<int64_t>& steps, int64_t& count) {
    extents.push_back(plan.extents[letter].value());
    count *= extents.back();
    for (size_t i = 0; i < loops.operands; ++i) steps.push_back(step(letter, i));
  };
  for (size_t letter : plan.result) add(letter, loops.kept, loops.kept_steps, loops.results);
  for (size_t letter = 0; letter < plan.extents.size(); ++letter) {
    if (std::find(plan.result.begin(), plan.result.end(), letter) != plan.result.end()) continue;
    add(letter, loops.summed, loops.summed_steps, loops.terms);
  }
  return loops;
}

using Offsets = std::array<int64_t, kMaxOperands>;

void seek(Offsets& at, int64_t i, const tensor::Dims& extents, const std::vector<int64_t>& steps,
          size_t operands) {
  for (size_t d = extents.size(); d-- > 0;) {
    for (size_t k = 0; k < operands; ++k) at[k] += i % extents[d] * steps[d * operands + k];
    i /= extents[d];
  }
}

template <class T, class A>
A product_at(const ir::RunArgs& args, const Offsets& at, size_t operands) {
  A product = 1;
  for (size_t k = 0; k < operands; ++k) {
    product *= static_cast<A>(static_cast<Arithmetic<T>>(static_cast<const T*>(args.in[k])[at[k]]));
  }
  return product;
}

template <class T>
void einsum_results(const EinsumLoops& loops, const ir::RunArgs& args, int64_t begin, int64_t end) {
  using A = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
  const size_t dims = loops.summed.size();
  const int64_t inner = dims == 0 ? 1 : loops.summed.back();
  for (int64_t i = begin; i < end; ++i) {
    Offsets base{};
    seek(base, i, loops.kept, loops.kept_steps, loops.operands);
    A total = 0;
    for (int64_t t = 0; t < loops.terms; t += inner) {
      Offsets at = base;
      seek(at, t, loops.summed, loops.summed_steps, loops.operands);
      for (int64_t j = 0; j < inner; ++j) {
        total += product_at<T, A>(args, at, loops.operands);
        for (size_t k = 0; dims > 0 && k < loops.operands; ++k)
          at[k] += loops.summed_steps[(dims - 1) * loops.operands + k];
      }
    }
    static_cast<T*>(args.out[0])[i] = static_cast<T>(total);
  }
}

ir::BoundKernel prepare_einsum(const ir::KernelInit& init) {
  const EinsumLoops loops = loops_of(init.node);
  return tensor::visit_dtype(init.node.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[loops](const ir::RunArgs& args) {
      const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, loops.terms));
      cpu::pool_of(args.stream).for_range(loops.results, grain, [&](int64_t begin, int64_t end) {
        einsum_results<T>(loops, args, begin, end);
      });
    }};
  });
}

std::vector<ir::Kernel> reference(ir::BoundKernel (*prepare)(const ir::KernelInit&)) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.prepare = prepare;
  return {k};
}

}  // namespace

std::vector<ir::Kernel> det_cpu_kernels() { return reference(prepare_det); }
std::vector<ir::Kernel> det_grad_cpu_kernels() { return reference(prepare_det_grad); }
std::vector<ir::Kernel> einsum_cpu_kernels() {
  std::vector<ir::Kernel> kernels{einsum_matmul_kernel()};
  kernels.push_back(reference(prepare_einsum)[0]);
  return kernels;
}

}  // namespace trireme::ops
