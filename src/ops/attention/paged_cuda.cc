// Kernels of paged_attention and kv_append on NVIDIA GPUs.
#include "backend/cuda/attention/paged_attention.h"
#include "ops/attention/paged.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

constexpr std::initializer_list<DType> kTypes = {DType::f32, DType::bf16, DType::f16};

ir::Refusal refuse_paged(const ir::NodeView& node) {
  if (auto why = refuse_dtype(node, 0, kTypes)) return why;
  if (node.in[0].dtype != node.in[1].dtype && node.in[0].dtype != DType::f32)
    return base::concat("queries are ", name_of(node.in[0].dtype), ", pages ", name_of(node.in[1].dtype));
  if (plan_paged(node).pages.dim > cuda::kMostPagedDim)
    return base::concat("a head has more than ", cuda::kMostPagedDim, " channels");
  return std::nullopt;
}

ir::BoundKernel prepare_paged(const ir::KernelInit& init) {
  const PagedPlan p = plan_paged(init.node);
  const cuda::PagedAttentionArgs fixed{.type = init.node.in[0].dtype,
                                       .page_type = init.node.in[1].dtype,
                                       .rows = p.rows,
                                       .sequences = p.sequences,
                                       .heads = p.heads,
                                       .kv_heads = p.pages.kv_heads,
                                       .dim = p.pages.dim,
                                       .pages = p.pages.pages,
                                       .page_tokens = p.pages.page_tokens,
                                       .most_pages = p.most_pages,
                                       .window = p.window,
                                       .scale = p.scale,
                                       .softcap = p.softcap};
  auto run = [fixed](const ir::RunArgs& args) {
    cuda::PagedAttentionArgs a = fixed;
    a.q = args.in[0];
    a.k_pages = args.in[1];
    a.v_pages = args.in[2];
    a.table = in_ptr<int32_t>(args, 3);
    a.lengths = in_ptr<int32_t>(args, 4);
    a.starts = in_ptr<int32_t>(args, 5);
    a.y = args.out[0];
    a.workspace = args.workspace;
    a.fault = args.fault;
    a.step = args.step;
    cuda::paged_attention(args.stream, a);
  };
  return {run, cuda::paged_attention_workspace_bytes(fixed)};
}

ir::BoundKernel prepare_append(const ir::KernelInit& init) {
  const AppendPlan p = plan_append(init.node);
  const cuda::KvAppendArgs fixed{.type = init.node.in[0].dtype,
                                 .page_type = init.node.in[2].dtype,
                                 .tokens = p.tokens,
                                 .kv_heads = p.pages.kv_heads,
                                 .dim = p.pages.dim,
                                 .pages = p.pages.pages,
                                 .page_tokens = p.pages.page_tokens};
  const int64_t elements = p.pages.pages * p.pages.kv_heads * p.pages.page_tokens * p.pages.dim;
  const int64_t bytes = tensor::bytes_of(fixed.page_type, elements);
  return {[fixed, bytes](const ir::RunArgs& args) {
    // In place as programs have it, else a copy first.
    for (size_t i : {0, 1}) {
      if (args.out[i] != args.in[2 + i]) args.stream.copy(args.out[i], args.in[2 + i], bytes);
    }
    cuda::KvAppendArgs a = fixed;
    a.keys = args.in[0];
    a.values = args.in[1];
    a.slots = in_ptr<int32_t>(args, 4);
    a.k_pages = args.out[0];
    a.v_pages = args.out[1];
    a.fault = args.fault;
    a.step = args.step;
    cuda::kv_append(args.stream, a);
  }};
}

}  // namespace

std::vector<CudaKernels> paged_cuda_kernels() {
  const ir::Kernel attend{.name = "pages", .refuse = refuse_paged, .prepare = prepare_paged};
  const ir::Kernel append{.name = "rows",
                          .refuse = [](const ir::NodeView& node) { return refuse_dtype(node, 0, kTypes); },
                          .prepare = prepare_append};
  return {{"paged_attention", {attend}}, {"kv_append", {append}}};
}

}  // namespace trireme::ops
