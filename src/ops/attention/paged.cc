// paged_attention and kv_append, the two operators of language models with a key-value cache: types and cost.
#include "ops/attention/paged.h"

#include <algorithm>
#include <cmath>

#include "ops/attention/attention_cuts.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

constexpr const char* kNoGrad =
    "keys and values in pages serve inference; training attends to whole sequences";

bool is_cache_type(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16 || holds_codes(type);
}

void need_pages(const ir::NodeView& n, size_t i) {
  base::require(n.in[i].shape.is_static() && n.in[i].shape.rank() == 4 && is_cache_type(n.in[i].dtype),
                "pages are f32, bf16, f16, i8 or f8e4m3fn [pages, kv_heads, page_tokens, elements], operand ",
                i, " is ", n.in[i].to_string());
}

void need_ints(const ir::NodeView& n, size_t i, size_t rank) {
  const Shape& shape = n.in[i].shape;
  base::require(n.in[i].dtype == DType::i32 && (!shape.has_rank() || shape.rank() == rank), "operand ", i,
                " is i32 of rank ", rank, ", not ", n.in[i].to_string());
}

PageShape page_shape(const ir::NodeView& n, size_t i) {
  const tensor::Dims d = n.in_dims(i);
  const int64_t scale = row_elements(n.in[i].dtype, 0);
  base::require(d[3] > scale, "pages whose rows have ", d[3], " elements");
  return {d[0], d[1], d[2], d[3] - scale};
}

/// The product of all extents but the last.
int64_t rows_of(const tensor::Dims& dims) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < dims.size(); ++i) rows *= dims[i];
  return rows;
}

std::vector<TensorType> infer_paged(const ir::NodeView& n) {
  need_pages(n, 1);
  need_pages(n, 2);
  need_ints(n, 3, 2);
  need_ints(n, 4, 1);
  need_ints(n, 5, 1);
  base::require(n.in[1] == n.in[2], "keys ", n.in[1].to_string(), " and values ", n.in[2].to_string());
  if (n.present(kPagedSinks))
    base::require(n.in[kPagedSinks].dtype == DType::f32, "sinks are f32 [heads], not ",
                  n.in[kPagedSinks].to_string());
  const Shape& q = n.in[0].shape;
  base::require(!q.has_rank() || q.rank() >= 2, "queries [..., tokens, heads * dim], not ", q.to_string());
  bool is_static = true;
  for (const TensorType& t : n.in) is_static = is_static && t.shape.is_static();
  if (is_static) plan_paged(n);
  return {n.in[0]};
}

std::vector<TensorType> infer_append(const ir::NodeView& n) {
  need_pages(n, 2);
  need_pages(n, 3);
  need_ints(n, 4, 1);
  base::require(n.in[2] == n.in[3], "keys ", n.in[2].to_string(), " and values ", n.in[3].to_string());
  if (n.in[0].shape.is_static() && n.in[1].shape.is_static() && n.in[4].shape.is_static()) plan_append(n);
  return {n.in[2], n.in[3]};
}

/// An upper bound: every sequence has as many tokens as its pages hold.
ir::Cost paged_cost(const ir::NodeView& n) {
  const PagedPlan p = plan_paged(n);
  const int64_t held = std::min(p.most_pages, p.pages.pages) * p.pages.page_tokens;
  const auto keys = static_cast<double>(p.window > 0 ? std::min(held, p.window + p.rows) : held);
  const auto row = static_cast<double>(p.heads * p.pages.dim);
  const int64_t token_bytes = p.pages.kv_heads * row_bytes(n.in[1].dtype, p.pages.dim);
  const double cache = 2 * keys * static_cast<double>(token_bytes * p.sequences);
  return {.flop = 4 * static_cast<double>(p.rows) * row * keys,
          .bytes = cache + 2 * static_cast<double>(tensor::bytes_of(n.in[0].dtype, p.rows)) * row};
}

/// Each new key and value is read once and written once.
ir::Cost append_cost(const ir::NodeView& n) {
  const AppendPlan p = plan_append(n);
  const int64_t rows = 2 * p.tokens * p.pages.kv_heads;
  const int64_t bytes = row_bytes(n.in[0].dtype, p.pages.dim) + row_bytes(n.in[2].dtype, p.pages.dim);
  return {.flop = 0, .bytes = static_cast<double>(rows * bytes)};
}

ir::OpSchema paged_attention() {
  return {.name = "paged_attention",
          .doc =
              "y = softmax(scale q k^T) v, scores capped where softcap is set, of the last tokens of each "
              "sequence over its keys and values in "
              "pages, causal; operands q [..., tokens, heads dim], key and value pages [pages, kv_heads, "
              "page_tokens, dim], in 8 bits dim + 4: codes and an f32 scale, table [sequences, pages of "
              "one], lengths [sequences], starts [sequences + 1], sinks f32 "
              "[heads] or none: one more score of each head, which has no value",
          .precision = ir::PrecisionRule{PrecisionKind::paged, "products, softmax and sums in f32", 1},
          .cut = paged_attention_cut,
          .min_in = 6,
          .max_in = 7,
          .attrs = {{"left_window_size", "int", "keys before the query that it sees, -1: all"},
                    {"scale", "float", "default 1 / sqrt(dim)"},
                    {"softcap", "float", "scores become cap tanh(score / cap); 0: off"}},
          .infer = infer_paged,
          .cost = paged_cost,
          .why_no_grad = kNoGrad};
}

ir::OpSchema kv_append() {
  return {
      .name = "kv_append",
      .doc =
          "writes keys and values [..., tokens, kv_heads dim] to places slots[token] of the key and value "
          "pages, in place; place = page * page_tokens + token in the page, below 0: nowhere; pages of 8 "
          "bits "
          "take codes and a scale, as paged_attention reads them",
      .precision = ir::PrecisionRule{PrecisionKind::paged, "moves elements", 2},
      .cut = kv_append_cut,
      .min_in = 5,
      .max_in = 5,
      .min_out = 2,
      .max_out = 2,
      .infer = infer_append,
      .cost = append_cost,
      .why_no_grad = kNoGrad,
      .updates = [](size_t) {
        return std::vector<ir::StateUpdate>{{0, 2}, {1, 3}};
      }};
}

}  // namespace

PagedPlan plan_paged(const ir::NodeView& n) {
  const tensor::Dims q = n.in_dims(0), table = n.in_dims(3);
  PagedPlan p{.rows = rows_of(q), .sequences = table[0], .most_pages = table[1], .pages = page_shape(n, 1)};
  base::require(p.pages.dim > 0 && p.pages.page_tokens > 0 && q.back() % p.pages.dim == 0, "queries of ",
                q.back(), " channels over heads of ", p.pages.dim);
  p.heads = q.back() / p.pages.dim;
  base::require(p.pages.kv_heads > 0 && p.heads % p.pages.kv_heads == 0, p.heads, " query heads over ",
                p.pages.kv_heads, " key heads");
  base::require(n.in_dims(4)[0] == p.sequences && n.in_dims(5)[0] == p.sequences + 1, "a table of ",
                p.sequences, " sequences with ", n.in_dims(4)[0], " lengths and ", n.in_dims(5)[0],
                " starts");
  if (n.present(kPagedSinks))
    base::require(n.in_dims(kPagedSinks) == tensor::Dims{p.heads}, "sinks ", n.in[kPagedSinks].to_string(),
                  " of ", p.heads, " heads");
  p.scale = static_cast<float>(n.attrs.get_float("scale", 1.0 / std::sqrt(static_cast<double>(p.pages.dim))));
  p.softcap = static_cast<float>(n.attrs.get_float("softcap", 0));
  p.window = std::max<int64_t>(0, n.attrs.get_int("left_window_size", -1) + 1);
  return p;
}

AppendPlan plan_append(const ir::NodeView& n) {
  const tensor::Dims keys = n.in_dims(0);
  const AppendPlan p{.tokens = rows_of(keys), .pages = page_shape(n, 2)};
  base::require(n.in[0] == n.in[1], "keys ", n.in[0].to_string(), " and values ", n.in[1].to_string());
  base::require(keys.back() == p.pages.kv_heads * p.pages.dim, "keys of ", keys.back(), " channels for ",
                p.pages.kv_heads, " heads of ", p.pages.dim);
  base::require(n.in_dims(4)[0] == p.tokens, n.in_dims(4)[0], " slots for ", p.tokens, " tokens");
  return p;
}

std::vector<ir::OpDef> paged_ops() {
  return {{paged_attention(), paged_attention_cpu_kernels()}, {kv_append(), kv_append_cpu_kernels()}};
}

}  // namespace trireme::ops
