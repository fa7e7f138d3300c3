// Operands of paged_attention and kv_append, and the kernels of both.
#pragma once

#include <initializer_list>
#include <vector>

#include "ir/kernel.h"
#include "tensor/blocks/coded_rows.h"

namespace trireme::ops {

using tensor::holds_codes;
using tensor::row_bytes;
using tensor::row_elements;

/// Keys and values of all sequences: [pages, kv_heads, page_tokens, row_elements(type, dim)].
struct PageShape {
  int64_t pages = 0, kv_heads = 1, page_tokens = 1, dim = 1;
};

/// Operand of paged_attention behind starts: a score of each head that takes its share and gives nothing.
inline constexpr size_t kPagedSinks = 6;

/// Extents of a node of paged_attention, whose shapes are static. Operands: q, keys, values, table, lengths,
/// starts, sinks.
struct PagedPlan {
  int64_t rows = 0, heads = 1, sequences = 0, most_pages = 0;
  PageShape pages;
  float scale = 1, softcap = 0;
  int64_t window = 0;  ///< keys that a query sees, its own among them; 0: all before it
};
PagedPlan plan_paged(const ir::NodeView& node);

/// Extents of a node of kv_append. Operands: keys, values, key pages, value pages, slots.
struct AppendPlan {
  int64_t tokens = 0;
  PageShape pages;
};
AppendPlan plan_append(const ir::NodeView& node);

/// Types of the rows that kernels take.
inline constexpr std::initializer_list<tensor::DType> kPagedTypes = {tensor::DType::f32, tensor::DType::bf16,
                                                                     tensor::DType::f16};

std::vector<ir::Kernel> paged_attention_cpu_kernels();
std::vector<ir::Kernel> kv_append_cpu_kernels();

}  // namespace trireme::ops
