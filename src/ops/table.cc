// The table of all operators, and the evaluation of single nodes outside programs.
#include "ops/table.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/cuda_kernels.h"
#include "ops/operand_rules.h"
#include "tensor/absent.h"

namespace trireme::ops {

#define OP(name)                \
  ir::OpSchema name##_schema(); \
  std::vector<ir::Kernel> name##_cpu_kernels();
#define OPS(name) std::vector<ir::OpDef> name##_ops();
#define CUDA(name) std::vector<CudaKernels> name##_cuda_kernels();
#include "ops/op_list.inc"
#undef OP
#undef OPS
#undef CUDA

namespace {

void add_cuda_kernels(std::vector<ir::OpDef>& ops, std::vector<CudaKernels> on_gpus) {
  for (CudaKernels& of_op : on_gpus) {
    const auto at =
        std::find_if(ops.begin(), ops.end(), [&](const ir::OpDef& op) { return op.schema.name == of_op.op; });
    base::check(at != ops.end(), "CUDA kernels for '", of_op.op, "', which is no operator");
    for (ir::Kernel& kernel : of_op.kernels) {
      kernel.on = tensor::DeviceKind::cuda;
      at->kernels.push_back(std::move(kernel));
    }
  }
}

}  // namespace

const ir::OpTable& table() {
  static const ir::OpTable all = [] {
    std::vector<ir::OpDef> ops;
    std::vector<CudaKernels> on_gpus;
#define OP(name) ops.push_back({name##_schema(), name##_cpu_kernels()});
#define OPS(name) \
  for (ir::OpDef & op : name##_ops()) ops.push_back(std::move(op));
#define CUDA(name) \
  for (CudaKernels & of_op : name##_cuda_kernels()) on_gpus.push_back(std::move(of_op));
#include "ops/op_list.inc"
#undef OP
#undef OPS
#undef CUDA
    add_cuda_kernels(ops, std::move(on_gpus));
    for (ir::OpDef& op : ops) guard_operands(op.schema);
    return ir::OpTable(std::move(ops));
  }();
  return all;
}

const ir::Kernel* choose_kernel(const ir::OpDef& op, const ir::NodeView& node, tensor::DeviceKind on,
                                std::vector<std::string>* reasons) {
  for (const ir::Kernel& kernel : op.kernels) {
    if (kernel.on != on) continue;
    const ir::Refusal refusal = kernel.refuse ? kernel.refuse(node) : std::nullopt;
    if (!refusal) return &kernel;
    if (reasons != nullptr) reasons->push_back(kernel.name + ": " + *refusal);
  }
  return nullptr;
}

namespace {

ir::NodeView view_of(const ir::Attrs& attrs, const std::vector<tensor::Tensor>& in, size_t out_count) {
  ir::NodeView node{
      .attrs = attrs, .in = {}, .out = {}, .known = {}, .is_present = {}, .out_count = out_count};
  for (const tensor::Tensor& t : in) {
    node.is_present.push_back(t.defined());
    node.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
    node.known.push_back(t.defined() ? &t : nullptr);
  }
  return node;
}

/// Runs the simpler nodes that the op expands to.
std::vector<tensor::Tensor> evaluate_expansion(const ir::OpDef& op, const ir::Attrs& attrs,
                                               const std::vector<tensor::Tensor>& in, size_t out_count,
                                               const HostRun& on) {
  ir::Graph graph;
  ir::Node node{.op = &op, .attrs = attrs, .in = {}, .out = {}, .from = op.schema.name};
  for (const tensor::Tensor& t : in) node.in.push_back(t.defined() ? graph.add_constant(t) : ir::kNoValue);
  node.out = graph.add(op, node.in, attrs, out_count, node.from);
  const size_t first = graph.nodes().size();
  const std::vector<ir::ValueId> results = op.schema.expand(graph, node);
  std::vector<tensor::Tensor> values(graph.values().size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = graph.values()[i].data;
  for (const ir::Node& step : graph.nodes().subspan(first)) {
    std::vector<tensor::Tensor> operands;
    for (ir::ValueId id : step.in)
      operands.push_back(id == ir::kNoValue ? tensor::Tensor() : values[index(id)]);
    const auto made = evaluate(*step.op, step.attrs, operands, step.out.size(), on);
    for (size_t i = 0; i < made.size(); ++i) {
      if (step.out[i] != ir::kNoValue) values[index(step.out[i])] = made[i];
    }
  }
  std::vector<tensor::Tensor> out;
  for (ir::ValueId id : results) out.push_back(id == ir::kNoValue ? tensor::Tensor() : values[index(id)]);
  return out;
}

/// If an operand has no content, only the types of results are known.
std::vector<tensor::Tensor> absent_results(const ir::OpDef& op,
                                           const std::vector<tensor::TensorType>& types) {
  std::vector<tensor::Tensor> out;
  for (const tensor::TensorType& t : types) {
    if (!t.shape.is_static())
      base::fail_unsupported("op '", op.schema.name, "': the shape of ", t.to_string(),
                             " follows from the content of a constant, which is not there");
    out.push_back(tensor::absent(t.dtype, t.shape.to_dims()));
  }
  return out;
}

/// Subtracts `bytes` from the budget `left`, or fails and names the op and the type.
void take_bytes(int64_t bytes, int64_t& left, const ir::OpDef& op,
                const std::vector<tensor::TensorType>& out) {
  if (bytes <= left) {
    left -= bytes;
    return;
  }
  base::fail(base::ErrorCode::exhausted, "op '", op.schema.name, "' with results of type ",
             out.empty() ? "none" : out[0].to_string(), " needs ", bytes, " bytes, there are ", left);
}

}  // namespace

std::vector<tensor::Tensor> evaluate(const ir::OpDef& op, const ir::Attrs& attrs,
                                     const std::vector<tensor::Tensor>& in, size_t out_count,
                                     const HostRun& on) {
  ir::NodeView node = view_of(attrs, in, out_count);
  node.name = op.schema.name;
  node.out = ir::infer_types(op.schema, node);
  for (const size_t i : on.fed) {
    if (i < node.known.size()) node.known[i] = nullptr;  // nodes of an expansion may have fewer operands
  }
  if (tensor::has_absent(in)) return absent_results(op, node.out);
  int64_t left = on.max_bytes;
  for (const tensor::TensorType& t : node.out) take_bytes(tensor::bytes_of(t), left, op, node.out);
  std::vector<tensor::Tensor> out;
  for (const tensor::TensorType& t : node.out) {
    out.push_back(tensor::Tensor::empty(t.dtype, t.shape.to_dims()));
  }
  if (op.schema.is_view) {
    if (out[0].bytes() > 0)
      std::memcpy(out[0].mutable_raw(), in[0].raw(), static_cast<size_t>(out[0].bytes()));
    return out;
  }
  std::vector<std::string> reasons;
  const ir::Kernel* kernel = choose_kernel(op, node, tensor::DeviceKind::cpu, &reasons);
  if (kernel == nullptr && op.schema.expand) return evaluate_expansion(op, attrs, in, out_count, on);
  if (kernel == nullptr) {
    std::string all;
    for (const std::string& r : reasons) all += "; " + r;
    base::fail_unsupported("no CPU kernel runs op '", op.schema.name, "'", all);
  }
  base::SharedCache packs;
  const ir::BoundKernel bound = kernel->prepare({node, packs, on.pool.size()});
  take_bytes(bound.workspace_bytes, left, op, node.out);
  const tensor::Tensor workspace = tensor::Tensor::empty(tensor::DType::u8, {bound.workspace_bytes});
  std::vector<const void*> in_pointers;
  std::vector<void*> out_pointers;
  for (const tensor::Tensor& t : in) in_pointers.push_back(t.defined() ? t.raw() : nullptr);
  for (tensor::Tensor& t : out) out_pointers.push_back(t.mutable_raw());
  cpu::CpuStream stream(on.pool);
  tensor::Tensor scratch = workspace;
  ir::RunStatus status;
  bound.run({in_pointers.data(), out_pointers.data(), scratch.mutable_raw(), stream, &status});
  status.throw_if_failed(op.schema.name);
  return out;
}

}  // namespace trireme::ops
