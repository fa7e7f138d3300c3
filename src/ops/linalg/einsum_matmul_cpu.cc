// einsum of two f32 operands as one batched matrix product: operands are permuted to [batch, m, k] and
// [batch, k, n], the product to the order of the result. Permutations without effect are skipped.
#include <algorithm>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/dense/gemm_f32.h"
#include "backend/cpu/move/transpose_copy.h"
#include "ops/elementwise/strided_loop.h"
#include "ops/linalg/linalg_ops.h"

namespace trireme::ops {
namespace {

/// The letters of an equation by their role in the product.
struct Roles {
  EinsumLetters batch, m, n, k;
};

EinsumPlan plan_of(const ir::NodeView& node) {
  std::vector<tensor::Shape> shapes;
  for (const tensor::TensorType& t : node.in) shapes.push_back(t.shape);
  return parse_einsum(node.attrs.get_string("equation", ""), shapes);
}

/// Finds the roles; returns a reason if the equation is not a matrix product.
ir::Refusal find_roles(const ir::NodeView& node, const EinsumPlan& plan, Roles& roles) {
  const EinsumLetters &a = plan.operands[0], &b = plan.operands[1];
  for (size_t i = 0; i < 2; ++i) {
    const tensor::Dims dims = node.in_dims(i);
    for (size_t d = 0; d < dims.size(); ++d) {
      const size_t l = plan.operands[i][d];
      if (std::count(plan.operands[i].begin(), plan.operands[i].end(), l) > 1)
        return "an operand's diagonal is read";
      if (dims[d] != plan.extents[l].value()) return "a dimension is repeated";
    }
  }
  for (size_t l = 0; l < plan.extents.size(); ++l) {
    const bool in_a = has_letter(a, l), in_b = has_letter(b, l), in_y = has_letter(plan.result, l);
    if (in_a && in_b)
      (in_y ? roles.batch : roles.k).push_back(l);
    else if (!in_y)
      return "one operand is summed by itself";
    else
      (in_a ? roles.m : roles.n).push_back(l);
  }
  return std::nullopt;
}

/// A permutation of a dense tensor as a strided copy; `is_needed` is false if it has no effect.
struct Order {
  tensor::Dims extent;
  std::vector<int64_t> in_steps, out_steps;
  bool is_needed = false;
};

/// The permutation from dimensions in the order `from` to the same letters in the order `to`.
Order order_of(const EinsumLetters& from, const EinsumLetters& to, const EinsumPlan& plan) {
  tensor::Dims dims;
  for (size_t l : from) dims.push_back(plan.extents[l].value());
  const std::vector<int64_t> steps = dense_steps(dims);
  Order order;
  for (size_t l : to) {
    const size_t d = static_cast<size_t>(std::find(from.begin(), from.end(), l) - from.begin());
    order.extent.push_back(dims[d]);
    order.in_steps.push_back(steps[d]);
  }
  order.out_steps = dense_steps(order.extent);
  order.is_needed = order.in_steps != order.out_steps;
  return order;
}

EinsumLetters joined(std::initializer_list<EinsumLetters> parts) {
  EinsumLetters all;
  for (const EinsumLetters& p : parts) all.insert(all.end(), p.begin(), p.end());
  return all;
}

int64_t extent_of(const EinsumLetters& letters, const EinsumPlan& plan) {
  int64_t product = 1;
  for (size_t l : letters) product *= plan.extents[l].value();
  return product;
}

/// Returns `from`, or its permuted copy in `space`.
const float* permuted(const Order& order, const void* from, std::byte* space, base::ThreadPool& pool) {
  if (!order.is_needed) return static_cast<const float*>(from);
  cpu::copy_strided({from, space, order.extent, order.in_steps, order.out_steps, sizeof(float)}, pool);
  return reinterpret_cast<const float*>(space);
}

int64_t floats(int64_t count) { return (count * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64; }

ir::BoundKernel prepare(const ir::KernelInit& init) {
  const EinsumPlan plan = plan_of(init.node);
  Roles r;
  find_roles(init.node, plan, r);
  const int64_t batch = extent_of(r.batch, plan), m = extent_of(r.m, plan), n = extent_of(r.n, plan),
                k = extent_of(r.k, plan);
  const Order a = order_of(plan.operands[0], joined({r.batch, r.m, r.k}), plan);
  const Order b = order_of(plan.operands[1], joined({r.batch, r.k, r.n}), plan);
  const Order y = order_of(joined({r.batch, r.m, r.n}), plan.result, plan);
  const int64_t a_bytes = floats(batch * m * k), b_bytes = floats(batch * k * n),
                y_bytes = floats(batch * m * n);
  const int64_t own = static_cast<int64_t>(cpu::gemm_batched_workspace_bytes(k, n, init.threads));
  return {
      [=](const ir::RunArgs& args) {
        base::ThreadPool& pool = cpu::pool_of(args.stream);
        std::byte* space = static_cast<std::byte*>(args.workspace);
        cpu::BatchedGemmArgs g{.outer = batch, .inner = 1, .m = m, .k = k, .n = n};
        g.a = permuted(a, args.in[0], space, pool);  // [batch, m, k]
        g.lda = k;
        g.a_outer = m * k;
        g.b = permuted(b, args.in[1], space + a_bytes, pool);  // [batch, k, n]
        g.ldb = n;
        g.b_outer = k * n;
        std::byte* product = space + a_bytes + b_bytes;
        g.c = y.is_needed ? reinterpret_cast<float*>(product)
                          : static_cast<float*>(args.out[0]);  // [batch, m, n]
        g.ldc = n;
        g.c_outer = m * n;
        cpu::gemm_batched(g, product + y_bytes, pool);
        if (y.is_needed) {
          cpu::copy_strided({product, args.out[0], y.extent, y.in_steps, y.out_steps, sizeof(float)}, pool);
        }
      },
      a_bytes + b_bytes + y_bytes + own};
}

ir::Refusal refuse(const ir::NodeView& node) {
  if (node.in.size() != 2 || node.in[0].dtype != tensor::DType::f32)
    return "not a product of two f32 operands";
  const EinsumPlan plan = plan_of(node);
  Roles roles;
  if (ir::Refusal why = find_roles(node, plan, roles)) return why;
  if (plan.extents.size() > static_cast<size_t>(cpu::kCopyMaxRank)) return "too many dimensions to permute";
  for (const tensor::Dim& d : plan.extents) {
    if (d.value() == 0) return "there is nothing to multiply";
  }
  return std::nullopt;
}

}  // namespace

ir::Kernel einsum_matmul_kernel() {
  ir::Kernel k{.name = "matmul"};
  k.refuse = refuse;
  k.prepare = prepare;
  return k;
}

}  // namespace trireme::ops
