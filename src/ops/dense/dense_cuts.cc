// Cut rules of the matrix products. Letters: M rows, N columns, K the summed index, a, b, … leading
// dimensions.
#include "ops/dense/dense_cuts.h"

#include "ops/cut.h"
#include "ops/dense/activation.h"
#include "ops/dense/matmul_shape.h"

namespace trireme::ops {
namespace {

std::string weight(const ir::NodeView& n) { return n.attrs.get_int("transposed", 0) != 0 ? "NK" : "KN"; }

/// Letters of all dimensions but the last.
std::string rows_of(const ir::NodeView& n) { return cut_letters(n.in[0].shape.rank() - 1); }

/// Batch letters of a matrix operand: those of the result, or none where the operand is broadcast.
std::string batch(const tensor::Shape& operand, const tensor::Shape& y, size_t lead) {
  const size_t own = operand.rank() < 2 ? 0 : operand.rank() - 2;
  std::string out;
  for (size_t d = 0; d < own; ++d) {
    const size_t at = lead - own + d;
    out += operand[d] == y[at] ? cut_letters(1, at)[0] : '.';
  }
  return out;
}

}  // namespace

ir::CutRule linear_cut(const ir::NodeView& n) {
  const std::string rows = rows_of(n);
  const bool is_linear = activation_of(n.attrs).kind == ActivationKind::none;
  // An activation of a sum is not the sum of activations, so K stays whole.
  std::string w = weight(n);
  if (!is_linear) w[w.find('K')] = '.';
  ir::CutRule rule{.notation = rows + (is_linear ? "K," : ".,") + w, .uneven = rows + "NK"};
  if (is_linear) rule.sums = "K";
  if (is_linear) rule.added = 0b1100;
  if (n.in.size() > 2) rule.notation += n.present(2) ? ",N" : ",";
  if (n.in.size() > 3) rule.notation += n.present(3) ? "," + rows + "N" : ",";
  rule.notation += "->" + rows + "N";
  if (n.out.size() > 1) rule.notation += "," + rows + "N";
  if (is_linear) rule.linear = {0b1101, 0b1110};
  return rule;
}

ir::CutRule linear_grad_x_cut(const ir::NodeView& n) {
  const std::string rows = rows_of(n);
  const std::string argument = n.in.size() > 2 ? "," + rows + "K" : "";
  return {.notation = rows + "N," + weight(n) + argument + "->" + rows + "K",
          .sums = "N",
          .linear = {0b01, 0b10},
          .uneven = rows + "NK"};
}

ir::CutRule linear_grad_w_cut(const ir::NodeView& n) {
  const std::string rows = rows_of(n);
  ir::CutRule rule{.notation = rows + "K," + rows + "N->" + weight(n), .sums = rows, .uneven = rows + "NK"};
  rule.linear = {0b10};
  if (n.out.size() > 1) rule.notation += ",N";
  // With the sum of dy, which does not depend on x, the results are not linear in x.
  else
    rule.linear.push_back(0b01);
  return rule;
}

ir::CutRule matmul_cut(const ir::NodeView& n) {
  const tensor::Shape &a = n.in[0].shape, &b = n.in[1].shape, &y = n.out[0].shape;
  const size_t matrix = (a.rank() > 1 ? 1u : 0u) + (b.rank() > 1 ? 1u : 0u);
  const size_t lead = y.rank() - matrix;
  const std::string left = a.rank() < 2 ? "K" : is_set(n.attrs, "transA") ? "KM" : "MK";
  const std::string right = b.rank() < 2 ? "K" : is_set(n.attrs, "transB") ? "NK" : "KN";
  ir::CutRule rule{.notation = batch(a, y, lead) + left + "," + batch(b, y, lead) + right,
                   .sums = "K",
                   .linear = {0b01, 0b10},
                   .uneven = cut_letters(lead) + "MNK"};
  // matmul_integer: zero points belong to rows of a and columns of b; sums over ranks are exact.
  if (n.in.size() > 2) rule.linear.clear();
  for (size_t i = 2; i < n.in.size(); ++i) {
    rule.notation += ',';
    if (n.present(i)) rule.notation += std::string(n.in[i].shape.rank(), '.');
    const char letter = i == 2 ? 'M' : 'N';
    const bool is_vector = n.present(i) && n.in[i].shape.rank() == 1 && n.in[i].shape[0].value() > 1;
    if (is_vector) rule.notation.back() = letter;
  }
  rule.notation += "->" + cut_letters(lead);
  if (a.rank() > 1) rule.notation += 'M';
  if (b.rank() > 1) rule.notation += 'N';
  return rule;
}

ir::CutRule gemm_cut(const ir::NodeView& n) {
  const bool has_c = n.present(2);
  ir::CutRule rule{.sums = "K", .linear = {0b101, 0b110}, .added = 0b100, .uneven = "MNK"};
  rule.notation =
      std::string(is_set(n.attrs, "transA") ? "KM," : "MK,") + (is_set(n.attrs, "transB") ? "NK" : "KN");
  if (n.in.size() > 2) {
    rule.notation += ',';
    const size_t rank = has_c ? n.in[2].shape.rank() : 0;
    for (size_t d = 0; d < rank; ++d) {
      const size_t at = 2 - rank + d;
      rule.notation += n.in[2].shape[d] == n.out[0].shape[at] ? "MN"[at] : '.';
    }
  }
  rule.notation += "->MN";
  return rule;
}

}  // namespace trireme::ops
