// Kernels of paged_attention, kv_append and decode_attention on NVIDIA GPUs.
#include "backend/cuda/attention/decode_attention.h"
#include "backend/cuda/attention/paged_attention.h"
#include "ops/attention/decode_attention.h"
#include "ops/attention/paged.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// Checks the types; queries are operand 0, pages are operand `pages`.
ir::Refusal refuse_pages(const ir::NodeView& node, size_t pages) {
  if (auto why = refuse_dtype(node, 0, kPagedTypes)) return why;
  const DType type = node.in[pages].dtype;
  if (node.in[0].dtype != type && node.in[0].dtype != DType::f32 && !holds_codes(type))
    return base::concat("queries are ", name_of(node.in[0].dtype), ", pages ", name_of(type));
  if (node.in_dims(pages)[3] - row_elements(type, 0) > cuda::kMostPagedDim)
    return base::concat("a head has more than ", cuda::kMostPagedDim, " channels");
  return std::nullopt;
}

ir::Refusal refuse_paged_on_gpu(const ir::NodeView& node) {
  if (node.present(kPagedSinks)) return "attention with sinks";
  return refuse_pages(node, 1);
}

cuda::PagedAttentionArgs paged_args(const PagedPlan& p, DType type, DType page_type) {
  return {.type = type,
          .page_type = page_type,
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
}

ir::BoundKernel prepare_paged_on_gpu(const ir::KernelInit& init) {
  const cuda::PagedAttentionArgs fixed =
      paged_args(plan_paged(init.node), init.node.in[0].dtype, init.node.in[1].dtype);
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

ir::Refusal refuse_decode(const ir::NodeView& node) {
  if (auto why = refuse_pages(node, kDaKeyPages)) return why;
  if (holds_codes(node.in[kDaKeyPages].dtype)) return "a warp, not a thread, writes a row of codes";
  if (!node.present(kDaCosine)) return std::nullopt;
  return node.in[kDaCosine].dtype == node.in[0].dtype ? std::nullopt
                                                      : refuse_dtype(node, kDaCosine, {DType::f32});
}

ir::BoundKernel prepare_decode(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const DecodeAttentionPlan p = plan_decode_attention(node);
  const cuda::DecodeAttentionArgs fixed{
      .attention = paged_args(p.attention, node.in[0].dtype, node.in[kDaKeyPages].dtype),
      .angle_rows = p.angle_rows,
      .rotated = p.rotated,
      .interleaved = p.interleaved,
      .angles_f32 = p.rotated == 0 || node.in[kDaCosine].dtype == DType::f32};
  const PageShape& pages = p.attention.pages;
  const int64_t bytes = tensor::bytes_of(fixed.attention.page_type,
                                         pages.pages * pages.kv_heads * pages.page_tokens * pages.dim);
  auto run = [fixed, bytes](const ir::RunArgs& args) {
    // Programs update the pages in place; otherwise they are copied first.
    for (size_t i : {0, 1}) {
      if (args.out[1 + i] != args.in[kDaKeyPages + i])
        args.stream.copy(args.out[1 + i], args.in[kDaKeyPages + i], bytes);
    }
    cuda::DecodeAttentionArgs a = fixed;
    a.attention.q = args.in[kDaQueries];
    a.attention.k_pages = args.out[1];
    a.attention.v_pages = args.out[2];
    a.attention.table = in_ptr<int32_t>(args, kDaTable);
    a.attention.lengths = in_ptr<int32_t>(args, kDaLengths);
    a.attention.starts = in_ptr<int32_t>(args, kDaStarts);
    a.attention.y = args.out[0];
    a.attention.workspace = args.workspace;
    a.attention.fault = args.fault;
    a.attention.step = args.step;
    a.keys = args.in[kDaKeys];
    a.values = args.in[kDaValues];
    a.slots = in_ptr<int32_t>(args, kDaSlots);
    if (fixed.rotated > 0) {
      a.cosine = args.in[kDaCosine];
      a.sine = args.in[kDaSine];
      a.positions = in_ptr<int64_t>(args, kDaPositions);
    }
    cuda::decode_attention(args.stream, a);
  };
  return {run, cuda::decode_attention_workspace_bytes(fixed)};
}

ir::BoundKernel prepare_append_on_gpu(const ir::KernelInit& init) {
  const AppendPlan p = plan_append(init.node);
  const cuda::KvAppendArgs fixed{.type = init.node.in[0].dtype,
                                 .page_type = init.node.in[2].dtype,
                                 .tokens = p.tokens,
                                 .kv_heads = p.pages.kv_heads,
                                 .dim = p.pages.dim,
                                 .pages = p.pages.pages,
                                 .page_tokens = p.pages.page_tokens};
  const int64_t rows = p.pages.pages * p.pages.kv_heads * p.pages.page_tokens;
  const int64_t bytes = rows * row_bytes(fixed.page_type, p.pages.dim);
  return {[fixed, bytes](const ir::RunArgs& args) {
    // Programs update the pages in place; otherwise they are copied first.
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
  const ir::Kernel attend{.name = "pages", .refuse = refuse_paged_on_gpu, .prepare = prepare_paged_on_gpu};
  const ir::Kernel append{
      .name = "rows",
      .refuse = [](const ir::NodeView& node) { return refuse_dtype(node, 0, kPagedTypes); },
      .prepare = prepare_append_on_gpu};
  const ir::Kernel decode{.name = "pages", .refuse = refuse_decode, .prepare = prepare_decode};
  return {{"paged_attention", {attend}}, {"kv_append", {append}}, {"decode_attention", {decode}}};
}

}  // namespace trireme::ops
