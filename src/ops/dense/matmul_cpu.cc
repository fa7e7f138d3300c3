// Reference kernels of matmul and gemm on CPU.
#include "backend/cpu/device/cpu_stream.h"
#include "ops/dense/matmul_fast.h"
#include "ops/dense/matmul_reference.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

template <class F>
decltype(auto) visit_arithmetic(DType type, F&& f) {
  switch (type) {
    case DType::i32: return f(int32_t{});
    case DType::i64: return f(int64_t{});
    case DType::u32: return f(uint32_t{});
    case DType::u64: return f(uint64_t{});
    default: return visit_float(type, std::forward<F>(f));
  }
}

ir::Refusal refuse_non_arithmetic(const ir::NodeView& node) {
  return refuse_dtype(node, 0, {DType::f32, DType::f64, DType::i32, DType::i64, DType::u32, DType::u64});
}

ir::BoundKernel prepare_matmul(const ir::KernelInit& init) {
  const MatmulShape shape = matmul_shape(init.node.in_dims(0), init.node.in_dims(1));
  return visit_arithmetic(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[shape](const ir::RunArgs& args) {
      matmul_reference(in_ptr<T>(args, 0), in_ptr<T>(args, 1), out_ptr<T>(args, 0), shape,
                       cpu::pool_of(args.stream));
    }};
  });
}

struct GemmPlan {
  int64_t m, n, k;
  int64_t a_row, a_k, b_k, b_col;  // strides of a and b after transposition
  int64_t c_row, c_col;            // 0 where c is broadcast
  double alpha, beta;
};

GemmPlan plan_gemm(const ir::NodeView& node) {
  const bool ta = node.attrs.get_int("transA", 0) != 0, tb = node.attrs.get_int("transB", 0) != 0;
  const Dims a = node.in_dims(0), b = node.in_dims(1);
  GemmPlan p{.m = ta ? a[1] : a[0], .n = tb ? b[0] : b[1], .k = ta ? a[0] : a[1]};
  p.a_row = ta ? 1 : a[1];
  p.a_k = ta ? a[1] : 1;
  p.b_k = tb ? 1 : b[1];
  p.b_col = tb ? b[1] : 1;
  if (node.present(2)) {
    const auto strides = broadcast_strides(node.in_dims(2), 2);
    p.c_row = strides[0];
    p.c_col = strides[1];
  }
  p.alpha = node.attrs.get_float("alpha", 1);
  p.beta = node.attrs.get_float("beta", 1);
  return p;
}

template <class T>
void run_gemm(const GemmPlan& p, const ir::RunArgs& args) {
  const T *a = in_ptr<T>(args, 0), *b = in_ptr<T>(args, 1), *c = in_ptr<T>(args, 2);
  T* y = out_ptr<T>(args, 0);
  cpu::pool_of(args.stream).for_range(p.m, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = y + i * p.n;
      for (int64_t j = 0; j < p.n; ++j) row[j] = T(0);
      for (int64_t l = 0; l < p.k; ++l) {
        const T factor = a[i * p.a_row + l * p.a_k];
        for (int64_t j = 0; j < p.n; ++j) row[j] += factor * b[l * p.b_k + j * p.b_col];
      }
      for (int64_t j = 0; j < p.n; ++j) {
        row[j] = static_cast<T>(p.alpha) * row[j];
        if (c != nullptr) row[j] += static_cast<T>(p.beta) * c[i * p.c_row + j * p.c_col];
      }
    }
  });
}

ir::BoundKernel prepare_gemm(const ir::KernelInit& init) {
  const GemmPlan plan = plan_gemm(init.node);
  const bool has_c = init.node.present(2);
  return visit_arithmetic(init.node.in[0].dtype, [&](auto t) {
    return ir::BoundKernel{[plan, has_c](const ir::RunArgs& args) {
      const void* in[3] = {args.in[0], args.in[1], has_c ? args.in[2] : nullptr};
      run_gemm<decltype(t)>(plan, {in, args.out, args.workspace, args.stream});
    }};
  });
}

std::vector<ir::Kernel> preceded_by(std::vector<ir::Kernel> fast, const ir::Kernel& plain) {
  fast.push_back(plain);
  fast.push_back(via_f32(plain));
  return fast;
}

}  // namespace

std::vector<ir::Kernel> matmul_cpu_kernels() {
  const ir::Kernel plain{
      .name = "reference", .is_reference = true, .refuse = refuse_non_arithmetic, .prepare = prepare_matmul};
  return preceded_by(matmul_fast_kernels(), plain);
}

std::vector<ir::Kernel> gemm_cpu_kernels() {
  const ir::Kernel plain{
      .name = "reference", .is_reference = true, .refuse = refuse_non_arithmetic, .prepare = prepare_gemm};
  return preceded_by(gemm_fast_kernels(), plain);
}

}  // namespace trireme::ops
