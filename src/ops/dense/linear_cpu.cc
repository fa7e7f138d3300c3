// Kernels of linear on CPU: packed weights with the fused epilogue, and the plain loops.
#include "backend/cpu/device/cpu_stream.h"
#include "ops/dense/bf16_cpu.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"
#include "tensor/rounded.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

struct LinearPlan {
  int64_t m, k, n;
  bool transposed;
  size_t operands, results;
  ActivationSpec activation;
};

LinearPlan linear_plan(const ir::NodeView& node) {
  const Dims x = node.in_dims(0), y = node.out_dims(0);
  return {product(x, 0, x.size() - 1),
          x.back(),
          y.back(),
          node.attrs.get_int("transposed", 0) != 0,
          node.in.size(),
          node.out.size(),
          activation_of(node.attrs)};
}

constexpr const char* kTwoResults = "the activation's argument is a result too";

ir::Refusal refuse_packed(const ir::NodeView& node) {
  if (node.out.size() > 1) return kTwoResults;
  if (auto why = refuse_empty(node)) return why;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (!node.present(i)) continue;
    if (auto why = refuse_dtype(node, i, {DType::f32})) return why;
  }
  if (node.value(1) == nullptr) return "weights are not constant, so they cannot be packed once";
  return std::nullopt;
}

ir::BoundKernel prepare_packed(const ir::KernelInit& init) {
  const LinearPlan p = linear_plan(init.node);
  ir::BoundKernel bound{
      .workspace_bytes = static_cast<int64_t>(cpu::gemm_workspace_bytes(p.m, p.k, p.n, init.threads)),
      .unread_inputs = 1u << 1};
  const auto packed = pack_matrix(init, *init.node.value(1), p.transposed);
  if (packed == nullptr) return bound;
  cpu::GemmArgs gemm{
      .m = p.m, .lda = p.k, .b = packed->matrix, .ldc = p.n, .epilogue = epilogue_of(p.activation)};
  bound.run = [gemm, packed, count = p.operands](const ir::RunArgs& args) {
    cpu::GemmArgs call = gemm;
    call.a = in_ptr<float>(args, 0);
    call.c = out_ptr<float>(args, 0);
    bind_epilogue(call.epilogue, args, count);
    cpu::gemm(call, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

/// Packs weights that change every step block by block inside the run.
ir::BoundKernel prepare_linear_blocks(const ir::KernelInit& init) {
  const LinearPlan p = linear_plan(init.node);
  const cpu::BlockProduct product{.m = p.m,
                                  .k = p.k,
                                  .n = p.n,
                                  .a = {nullptr, p.k},
                                  .b = {nullptr, p.transposed ? p.k : p.n, p.transposed},
                                  .ldc = p.n,
                                  .epilogue = epilogue_of(p.activation)};
  return bind_blocks(product, {0, 1, init.node.present(2) ? 2 : -1, init.node.present(3) ? 3 : -1}, init);
}

/// The content of a weight to be packed; a weight stored in another type is rounded into temporary memory.
tensor::Tensor content_of(const tensor::Tensor& weight, int threads) {
  const tensor::Tensor source = tensor::source_of(weight);
  if (!source.defined()) return weight;
  base::ThreadPool pool(threads);
  const ir::Attrs to{{"to", int64_t{16}}};  // bf16
  return evaluate(ops::table().need("cast"), to, {source}, 1, pool)[0];
}

ir::BoundKernel prepare_bf16(const ir::KernelInit& init) {
  const LinearPlan p = linear_plan(init.node);
  cpu::Bf16Product product{.m = p.m,
                           .k = p.k,
                           .n = p.n,
                           .a = {nullptr, p.k},
                           .b = {nullptr, p.transposed ? p.k : p.n, p.transposed},
                           .ldc = p.n,
                           .epilogue = epilogue_of(p.activation)};
  const BlockOperands operands{0, 1, init.node.present(2) ? 2 : -1, init.node.present(3) ? 3 : -1};
  const tensor::Tensor* weight = init.node.value(1);
  if (weight == nullptr) return bind_bf16(product, operands, init);
  const std::string format = base::concat("bf16 columns ", p.k, "x", p.n, p.transposed ? " transposed" : "");
  const auto packed = pack_once<tensor::Tensor>(init.packs, *weight, format, [&] {
    auto made = std::make_shared<tensor::Tensor>(
        tensor::Tensor::empty(tensor::DType::f32, {cpu::packed_bf16_floats(p.k, p.n)}));
    const tensor::Tensor content = content_of(*weight, init.threads);
    cpu::Bf16Operand b = product.b;
    b.data = reinterpret_cast<const uint16_t*>(content.raw());
    cpu::pack_bf16_columns(b, p.k, p.n, made->mutable_data<float>().data());
    return made;
  });
  if (packed != nullptr) product.packed_b = packed->data<float>().data();
  ir::BoundKernel bound = bind_bf16(product, operands, init);
  if (packed == nullptr) {
    bound.run = nullptr;
  } else {
    bound.run = [packed, run = std::move(bound.run)](const ir::RunArgs& args) { run(args); };
  }
  bound.unread_inputs = 1u << 1;
  return bound;
}

/// A refusal that also refuses a second result.
auto with_one_result(ir::Refusal (*rest)(const ir::NodeView&)) {
  return [rest](const ir::NodeView& node) -> ir::Refusal {
    if (node.out.size() > 1) return kTwoResults;
    return rest(node);
  };
}

template <class T>
void linear_reference_row(const LinearPlan& p, const ir::RunArgs& args, int64_t row) {
  const T *x = in_ptr<T>(args, 0) + row * p.k, *w = in_ptr<T>(args, 1);
  const T *bias = opt_ptr<T>(args, 2, p.operands), *residual = opt_ptr<T>(args, 3, p.operands);
  T* y = out_ptr<T>(args, 0) + row * p.n;
  T* argument = p.results > 1 && args.out[1] != nullptr ? out_ptr<T>(args, 1) + row * p.n : nullptr;
  for (int64_t j = 0; j < p.n; ++j) {
    double sum = bias == nullptr ? 0.0 : double(bias[j]);
    for (int64_t l = 0; l < p.k; ++l)
      sum += double(x[l]) * double(p.transposed ? w[j * p.k + l] : w[l * p.n + j]);
    const double add = residual == nullptr ? 0.0 : double(residual[row * p.n + j]);
    y[j] = T(finish(p.activation, sum, add));
    if (argument != nullptr) argument[j] = T(p.activation.before_residual ? sum : sum + add);
  }
}

ir::BoundKernel prepare_linear_reference(const ir::KernelInit& init) {
  const LinearPlan plan = linear_plan(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(plan.m, [&](int64_t row) {
        linear_reference_row<decltype(t)>(plan, args, row);
      });
    }};
  });
}

}  // namespace

std::vector<ir::Kernel> linear_cpu_kernels() {
  const ir::Kernel packed{.name = "packed_gemm", .refuse = refuse_packed, .prepare = prepare_packed};
  const ir::Kernel blocks{
      .name = "gemm_blocks", .refuse = with_one_result(refuse_blocks), .prepare = prepare_linear_blocks};
  const ir::Kernel bf16{.name = "gemm_bf16",
                        .refuse = with_one_result(refuse_bf16),
                        .prepare = prepare_bf16,
                        .packs_source = 0b10};
  return with_bf16(faster({packed, blocks}, float_reference(prepare_linear_reference)), bf16);
}

}  // namespace trireme::ops
