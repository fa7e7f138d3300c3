// Kernels of paged_attention and kv_append on CPU.
#include <algorithm>
#include <cstring>

#include "backend/cpu/elementwise/cast_types.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/attention/page_codes.h"
#include "backend/cpu/attention/paged_attention.h"
#include "ops/attention/decode_rows.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

ir::Refusal refuse_paged(const ir::NodeView& node) {
  if (auto why = refuse_dtype(node, 0, kPagedTypes)) return why;
  if (plan_paged(node).pages.dim > cpu::kPagedMaxDim)
    return base::concat("a head has more than ", cpu::kPagedMaxDim, " channels");
  return std::nullopt;
}

ir::BoundKernel prepare_paged(const ir::KernelInit& init) {
  const PagedPlan p = plan_paged(init.node);
  cpu::PagedAttention fixed{.type = init.node.in[0].dtype,
                            .page_type = init.node.in[1].dtype,
                            .rows = p.rows,
                            .sequences = p.sequences,
                            .heads = p.heads,
                            .kv_heads = p.pages.kv_heads,
                            .dim = p.pages.dim,
                            .row_bytes = row_bytes(init.node.in[1].dtype, p.pages.dim),
                            .pages = p.pages.pages,
                            .page_tokens = p.pages.page_tokens,
                            .most_pages = p.most_pages,
                            .window = p.window,
                            .scale = p.scale,
                            .softcap = p.softcap};
  auto run = [fixed, operands = init.node.in.size()](const ir::RunArgs& args) {
    cpu::PagedAttention a = fixed;
    a.sinks = opt_ptr<float>(args, kPagedSinks, operands);
    a.q = args.in[0];
    a.keys = args.in[1];
    a.values = args.in[2];
    a.table = in_ptr<int32_t>(args, 3);
    a.lengths = in_ptr<int32_t>(args, 4);
    a.starts = in_ptr<int32_t>(args, 5);
    a.y = args.out[0];
    a.workspace = args.workspace;
    int64_t value = 0;
    if (const char* fault = cpu::paged_fault(a, &value)) {
      if (args.status != nullptr) args.status->fail(fault, value);
      return;
    }
    cpu::paged_attention(a, cpu::pool_of(args.stream));
  };
  return {run, cpu::paged_attention_workspace_bytes(fixed)};
}

/// Widens n elements of f32, bf16 or f16; those of f32 stay where they are.
const float* widened(const void* from, DType type, float* room, size_t n) {
  const auto* bits = static_cast<const uint16_t*>(from);
  if (type == DType::bf16) cpu::bf16_to_f32(bits, room, n);
  if (type == DType::f16) cpu::f16_to_f32(bits, room, n);
  return type == DType::f32 ? static_cast<const float*>(from) : room;
}

/// Converts n elements between two types: copied, widened, or rounded to nearest even.
void convert(const void* from, DType from_type, void* to, DType to_type, size_t n) {
  if (from_type == to_type) {
    std::memcpy(to, from, n * static_cast<size_t>(tensor::bytes_of(to_type, 1)));
    return;
  }
  float wide[cpu::kPagedMaxDim];
  const auto* bytes = static_cast<const std::byte*>(from);
  for (size_t i = 0; i < n; i += cpu::kPagedMaxDim) {
    const size_t count = std::min<size_t>(cpu::kPagedMaxDim, n - i);
    const std::byte* rest = bytes + tensor::bytes_of(from_type, static_cast<int64_t>(i));
    const float* x = widened(rest, from_type, wide, count);
    if (to_type == DType::f32) std::memcpy(static_cast<float*>(to) + i, x, count * sizeof(float));
    if (to_type == DType::bf16) cpu::f32_to_bf16(x, static_cast<uint16_t*>(to) + i, count);
    if (to_type == DType::f16) cpu::f32_to_f16(x, static_cast<uint16_t*>(to) + i, count);
  }
}

ir::Refusal refuse_append(const ir::NodeView& node) {
  if (auto why = refuse_dtype(node, 0, kPagedTypes)) return why;
  if (holds_codes(node.in[2].dtype) && plan_append(node).pages.dim > cpu::kPagedMaxDim)
    return base::concat("a head has more than ", cpu::kPagedMaxDim, " channels");
  return std::nullopt;
}

ir::BoundKernel prepare_append(const ir::KernelInit& init) {
  const AppendPlan p = plan_append(init.node);
  const PageWriter to{p.pages, init.node.in[0].dtype, init.node.in[2].dtype};
  const int64_t row_bytes = tensor::bytes_of(to.row_type, p.pages.dim);
  return {[=](const ir::RunArgs& args) {
    for (const size_t i : {0, 1}) to.keep(args.in[i + 2], args.out[i]);
    const auto* slots = in_ptr<int32_t>(args, 4);
    const int64_t heads = p.pages.kv_heads;
    cpu::pool_of(args.stream).for_range(p.tokens * heads, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t slot = slots[i / heads];
        if (slot < 0) continue;
        if (slot >= to.places()) {
          if (args.status != nullptr) args.status->fail("slot out of range", slot);
          continue;
        }
        for (const size_t which : {0, 1}) {
          const auto* row = static_cast<const std::byte*>(args.in[which]) + i * row_bytes;
          to.write(row, slot, i % heads, args.out[which]);
        }
      }
    });
  }};
}

}  // namespace

void PageWriter::write(const void* row, int64_t slot, int64_t head, void* to) const {
  const int64_t page = slot / pages.page_tokens, at = slot % pages.page_tokens;
  const int64_t place = (page * pages.kv_heads + head) * pages.page_tokens + at;
  std::byte* own = static_cast<std::byte*>(to) + place * row_bytes();
  const auto channels = static_cast<size_t>(pages.dim);
  if (!holds_codes(page_type)) return convert(row, row_type, own, page_type, channels);
  float wide[cpu::kPagedMaxDim];
  cpu::encode_row(widened(row, row_type, wide, channels), page_type, own, channels);
}

void PageWriter::keep(const void* from, void* to) const {
  const int64_t bytes = places() * pages.kv_heads * row_bytes();
  if (from != to && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

std::vector<ir::Kernel> paged_attention_cpu_kernels() {
  return {{.name = "pages", .refuse = refuse_paged, .prepare = prepare_paged}};
}

std::vector<ir::Kernel> kv_append_cpu_kernels() {
  return {{.name = "rows", .refuse = refuse_append, .prepare = prepare_append}};
}

}  // namespace trireme::ops
