// adapter_linear: adds to a product the contribution of low-rank adapters (LoRA, Hu et al. 2021), chosen per
// row.
#include "ops/dense/adapter_linear.h"

#include <algorithm>

#include "ops/cut_notation.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Shape;

/// Throws unless operand `i` has the type and rank, as far as these are known.
void need(const ir::NodeView& n, size_t i, DType type, size_t rank, const char* what) {
  const Shape& s = n.in[i].shape;
  base::require(n.in[i].dtype == type && (!s.has_rank() || s.rank() == rank), what, " are ", name_of(type),
                " of rank ", rank, ", not ", n.in[i].to_string());
}

std::vector<tensor::TensorType> infer_adapter(const ir::NodeView& n) {
  const DType type = n.in[0].dtype;
  base::require(n.in[1].dtype == type, "rows ", n.in[1].to_string(), " beside a product ",
                n.in[0].to_string());
  need(n, 2, DType::i32, 1, "slots of rows");
  need(n, 3, DType::i32, 1, "ranks of adapters");
  need(n, 4, type, 3, "first factors of adapters");
  need(n, 5, type, 3, "second factors of adapters");
  const bool is_static =
      std::all_of(n.in.begin(), n.in.end(), [](const auto& t) { return t.shape.is_static(); });
  if (is_static) plan_adapter(n);
  return {n.in[0]};
}

/// An upper bound: every row has an adapter, and each another one while there are slots.
ir::Cost adapter_cost(const ir::NodeView& n) {
  const AdapterPlan p = plan_adapter(n);
  const double each = static_cast<double>(p.rank) * static_cast<double>(p.in + p.out);
  const double unit = static_cast<double>(tensor::bytes_of(n.in[0].dtype, 1));
  const auto rows = static_cast<double>(p.rows);
  return {.flop = 2 * rows * each,
          .bytes = unit * (static_cast<double>(std::min(p.rows, p.slots)) * each +
                           rows * static_cast<double>(p.in + 2 * p.out))};
}

/// T tokens, K the summed index, N columns. Every rank keeps all adapters and their whole rank.
ir::CutRule adapter_cut(const ir::NodeView& n) {
  const tensor::Dims y = n.in_dims(0);
  const bool is_flat = y[y.size() - 2] == plan_adapter(n).rows;
  const std::string rows = dots(y.size() - 2) + (is_flat ? "T" : ".");
  CutNotation notation(n);
  notation.in(0, rows + "N").in(1, rows + "K").in(2, is_flat ? "T" : ".");
  notation.in(4, "..K").in(5, "..N").out(0, rows + "N");
  return {.notation = notation.text(),
          .sums = "K",
          .linear = {0b000011, 0b010001, 0b100001},
          .added = 0b000001,
          .uneven = is_flat ? "TKN" : "KN"};
}

}  // namespace

AdapterPlan plan_adapter(const ir::NodeView& n) {
  const tensor::Dims y = n.in_dims(0), x = n.in_dims(1), a = n.in_dims(4), b = n.in_dims(5);
  base::require(y.size() >= 2 && x.size() == y.size() && std::equal(y.begin(), y.end() - 1, x.begin()),
                "rows ", n.in[1].to_string(), " beside a product ", n.in[0].to_string());
  AdapterPlan p{.in = x.back(), .out = y.back(), .slots = a[0], .rank = a[1]};
  p.rows = 1;
  for (size_t d = 0; d + 1 < y.size(); ++d) p.rows *= y[d];
  base::require(n.in_dims(2)[0] == p.rows, n.in_dims(2)[0], " slots for ", p.rows, " rows");
  base::require(n.in_dims(3)[0] == p.slots, n.in_dims(3)[0], " ranks for ", p.slots, " adapters");
  base::require(a[2] == p.in && b[0] == p.slots && b[1] == p.rank && b[2] == p.out, "adapters ",
                n.in[4].to_string(), " and ", n.in[5].to_string(), " for rows of ", p.in, " and results of ",
                p.out);
  return p;
}

ir::OpSchema adapter_linear_schema() {
  return {
      .name = "adapter_linear",
      .doc =
          "y[t] + (x[t] a[s]') b[s] with s = slots[t], of the first ranks[s] rows of a[s] and b[s]; y[t] as "
          "it "
          "is where s is below 0; operands y [..., tokens, out], x [..., tokens, in], slots i32 [tokens], "
          "ranks i32 [adapters], a [adapters, rank, in], b [adapters, rank, out]",
      .is_product = true,
      .cut = adapter_cut,
      .min_in = 6,
      .max_in = 6,
      .infer = infer_adapter,
      .cost = adapter_cost,
      .why_no_grad = "adapters serve inference; training changes the weights themselves"};
}

}  // namespace trireme::ops
