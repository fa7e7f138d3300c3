// det, einsum: schemas and the parser of einsum equations.
#include "ops/linalg/linalg_ops.h"

#include <algorithm>
#include <map>

#include "ops/cut.h"
#include "ops/cut_notation.h"
#include "ops/shape/shape_rules.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::Dim;
using tensor::Shape;
using Types = std::vector<tensor::TensorType>;

/// The letters of one operand or of the result: before "...", after it, and whether it occurs.
struct Term {
  std::string before, after;
  bool has_ellipsis = false;
};

std::vector<Term> split_terms(const std::string& text) {
  std::vector<Term> terms(1);
  for (size_t i = 0; i < text.size(); ++i) {
    Term& t = terms.back();
    if (text[i] == ' ') continue;
    if (text[i] == ',') {
      terms.emplace_back();
    } else if (text.compare(i, 3, "...") == 0) {
      base::require(!t.has_ellipsis, "einsum: two ellipses in one term of '", text, "'");
      t.has_ellipsis = true;
      i += 2;
    } else {
      base::require(std::isalpha(static_cast<unsigned char>(text[i])), "einsum: '", text.substr(i, 1),
                    "' in '", text, "'");
      (t.has_ellipsis ? t.after : t.before) += text[i];
    }
  }
  return terms;
}

/// The result of an equation without "->": letters that occur once, in alphabetical order.
std::string implicit_result(const std::vector<Term>& terms) {
  std::map<char, int> uses;
  for (const Term& t : terms) {
    for (char c : t.before + t.after) ++uses[c];
  }
  std::string out;
  for (const auto& [letter, count] : uses) out += count == 1 ? std::string(1, letter) : "";
  return out;
}

struct Letters {
  std::map<char, size_t> ids;
  std::vector<Dim> extents;
  size_t ellipsis = 0;  // ids [0, ellipsis) are the dimensions of "...", outermost first

  size_t id(char c) {
    const auto [at, is_new] = ids.emplace(c, extents.size());
    if (is_new) extents.push_back(1);
    return at->second;
  }
  void join(size_t letter, const Dim& d) { extents[letter] = ir::broadcast({extents[letter]}, {d})[0]; }
  std::vector<size_t> of(const Term& t, size_t ellipsis_rank) {
    std::vector<size_t> out;
    for (char c : t.before) out.push_back(id(c));
    for (size_t i = ellipsis - ellipsis_rank; t.has_ellipsis && i < ellipsis; ++i) out.push_back(i);
    for (char c : t.after) out.push_back(id(c));
    return out;
  }
};

Types infer_einsum(const NodeView& n) {
  std::vector<Shape> shapes;
  for (const tensor::TensorType& t : n.in) {
    base::require(t.dtype == n.in[0].dtype, "einsum: operands of different types");
    if (!t.shape.has_rank()) return like(n.in[0], Shape::unknown_rank());
    shapes.push_back(t.shape);
  }
  const EinsumPlan plan = parse_einsum(n.attrs.get_string("equation", ""), shapes);
  DimList out;
  for (size_t letter : plan.result) out.push_back(plan.extents[letter]);
  return like(n.in[0], Shape(std::move(out)));
}

ir::Cost cost_einsum(const NodeView& n) {
  ir::Cost cost;
  cost.flop = static_cast<double>(std::max<size_t>(2, n.in.size()));
  std::vector<Shape> shapes;
  for (const tensor::TensorType& t : n.in) {
    shapes.push_back(t.shape);
    cost.bytes += static_cast<double>(tensor::bytes_of(t));
  }
  cost.bytes += static_cast<double>(tensor::bytes_of(n.out[0]));
  for (const Dim& d : parse_einsum(n.attrs.get_string("equation", ""), shapes).extents) {
    cost.flop *= static_cast<double>(d.value());
  }
  return cost;
}

Types infer_det(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return like(n.in[0], x);
  base::require(x.rank() >= 2 && (x[x.rank() - 1] == x[x.rank() - 2] || !x[x.rank() - 1].is_static() ||
                                  !x[x.rank() - 2].is_static()),
                "det takes square matrices, got ", x.to_string());
  DimList out = x.dims();
  out.resize(out.size() - 2, 1);
  return like(n.in[0], Shape(std::move(out)));
}

/// Every letter that occurs once in each operand may be cut; letters that the result lacks leave partial
/// sums.
ir::CutRule cut_einsum(const NodeView& n) {
  std::vector<Shape> shapes;
  for (const tensor::TensorType& t : n.in) shapes.push_back(t.shape);
  const EinsumPlan plan = parse_einsum(n.attrs.get_string("equation", ""), shapes);
  const std::string all = cut_letters(plan.extents.size());
  std::string cuttable = all;
  for (const std::vector<size_t>& term : plan.operands) {
    for (size_t letter : term) {
      if (std::count(term.begin(), term.end(), letter) > 1) cuttable[letter] = '.';
    }
  }
  ir::CutRule rule;
  CutNotation notation(n);
  for (size_t i = 0; i < n.in.size(); ++i) {
    std::string text;
    for (size_t letter : plan.operands[i]) text += cuttable[letter];
    notation.broadcast(i, text);
    rule.linear.push_back(1u << i);
  }
  std::string result;
  for (size_t letter : plan.result) result += cuttable[letter];
  rule.notation = notation.out(0, result).text();
  for (size_t letter = 0; letter < all.size(); ++letter) {
    const bool kept = std::find(plan.result.begin(), plan.result.end(), letter) != plan.result.end();
    if (!kept && cuttable[letter] != '.') rule.sums += all[letter];
  }
  return rule;
}

/// Cuts batches of matrices; some operands or results lack the matrix dimensions.
ir::CutRule cut_matrices(const NodeView& n) {
  const size_t rank = n.in.back().shape.rank() - 2;
  CutNotation notation(n);
  for (size_t i = 0; i < n.in.size(); ++i)
    notation.in(i, cut_letters(rank) + dots(n.in[i].shape.rank() - rank));
  notation.out(0, cut_letters(rank) + dots(n.out[0].shape.rank() - rank));
  return {.notation = notation.text()};
}

}  // namespace

EinsumPlan parse_einsum(const std::string& equation, const std::vector<Shape>& operands) {
  const size_t arrow = equation.find("->");
  const std::vector<Term> terms = split_terms(equation.substr(0, arrow));
  base::require(terms.size() == operands.size(), "einsum: '", equation, "' has ", terms.size(), " terms for ",
                operands.size(), " operands");
  Letters letters;
  std::vector<size_t> under(terms.size(), 0);
  for (size_t i = 0; i < terms.size(); ++i) {
    const size_t named = terms[i].before.size() + terms[i].after.size();
    base::require(terms[i].has_ellipsis ? operands[i].rank() >= named : operands[i].rank() == named,
                  "einsum: operand ", operands[i].to_string(), " does not fit term ", i, " of '", equation,
                  "'");
    under[i] = terms[i].has_ellipsis ? operands[i].rank() - named : 0;
    letters.ellipsis = std::max(letters.ellipsis, under[i]);
  }
  letters.extents.assign(letters.ellipsis, Dim(1));
  EinsumPlan plan;
  for (size_t i = 0; i < terms.size(); ++i) {
    plan.operands.push_back(letters.of(terms[i], under[i]));
    for (size_t d = 0; d < operands[i].rank(); ++d) letters.join(plan.operands[i][d], operands[i][d]);
  }
  Term result;
  if (arrow == std::string::npos) {
    result.has_ellipsis = letters.ellipsis > 0;
    result.after = implicit_result(terms);
  } else {
    const std::vector<Term> out = split_terms(equation.substr(arrow + 2));
    base::require(out.size() == 1, "einsum: '", equation, "' has several results");
    result = out[0];
  }
  for (char c : result.before + result.after) {
    base::require(letters.ids.count(c) == 1, "einsum: result letter '", std::string(1, c),
                  "' is in no operand");
    const std::string all = result.before + result.after;
    base::require(std::count(all.begin(), all.end(), c) == 1, "einsum: '", std::string(1, c),
                  "' stands twice in the result of '", equation, "'");
  }
  plan.result = letters.of(result, letters.ellipsis);
  plan.extents = letters.extents;
  return plan;
}

std::vector<ir::OpDef> linalg_ops() {
  std::vector<ir::OpDef> ops;
  ops.push_back({{.name = "einsum",
                  .doc = "y = the sum of products that `equation` writes in index notation",
                  .precision = kProduct,
                  .is_product = true,
                  .cut = cut_einsum,
                  .max_in = 8,
                  .attrs = {{"equation", "string", "as NumPy's einsum, e.g. \"...ij,...jk->...ik\""}},
                  .infer = infer_einsum,
                  .expand = expand_einsum,
                  .cost = cost_einsum,
                  .grad = rule(einsum_rule),
                  .onnx = "Einsum"},
                 einsum_cpu_kernels()});
  ops.push_back({{.name = "det",
                  .doc = "determinant of each matrix",
                  .cut = cut_matrices,
                  .infer = infer_det,
                  .grad = rule(det_rule),
                  .onnx = "Det"},
                 det_cpu_kernels()});
  ops.push_back({{.name = "det_grad",
                  .doc = "dx = dy times the cofactors of each matrix; operands dy, x",
                  .cut = cut_matrices,
                  .min_in = 2,
                  .max_in = 2,
                  .infer = [](const NodeView& n) { return like(n.in[1], n.in[1].shape); },
                  .why_no_grad = "a backward op: second derivatives are not taken"},
                 det_grad_cpu_kernels()});
  return ops;
}

}  // namespace trireme::ops
