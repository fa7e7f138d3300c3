// einsum in simpler ops: diagonals by slices, sums over letters of one operand, then a batched matrix product
// (or a broadcast product) for each further operand.
#include <algorithm>

#include "ops/linalg/linalg_ops.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

/// A tensor with one letter per dimension; no letter occurs twice and no extent is 1.
struct Part {
  ValueId value;
  EinsumLetters letters;
};

class Expander {
 public:
  Expander(GradBuilder& g, const EinsumPlan& plan) : g_(g), plan_(plan) {}

  ValueId run() {
    std::vector<Part> parts;
    for (size_t i = 0; i < plan_.operands.size(); ++i) parts.push_back(diagonal(squeezed(i)));
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = own_sums(parts, i);
    Part all = parts[0];
    for (size_t i = 1; i < parts.size(); ++i) all = contracted(all, parts[i], needed_after(parts, i));
    return finished(all);
  }

 private:
  int64_t extent(size_t l) const { return plan_.extents[l].value(); }
  Dims extents(const EinsumLetters& letters) const {
    Dims dims;
    for (size_t l : letters) dims.push_back(extent(l));
    return dims;
  }
  int64_t size(const EinsumLetters& letters) const { return tensor::element_count(extents(letters)); }

  /// Operand i without its dimensions of extent 1, which have no effect or are broadcast.
  Part squeezed(size_t i) {
    const Dims dims = g_.dims(g_.in(i));
    Part p{g_.in(i), {}};
    Dims kept;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] == 1) continue;
      p.letters.push_back(plan_.operands[i][d]);
      kept.push_back(dims[d]);
    }
    p.value = g_.reshape(p.value, kept);
    return p;
  }

  /// Joins the two dimensions of a repeated letter: [..., n, n] -> [..., n n], of which every (n + 1)th
  /// element is kept.
  Part diagonal(Part p) {
    for (size_t second = 1; second < p.letters.size(); ++second) {
      const auto first = std::find(p.letters.begin(), p.letters.begin() + int64_t(second), p.letters[second]);
      if (first == p.letters.begin() + int64_t(second)) continue;
      const size_t l = p.letters[second], at = static_cast<size_t>(first - p.letters.begin());
      EinsumLetters rest;
      std::vector<int64_t> order;
      for (size_t d = 0; d < p.letters.size(); ++d) {
        if (d == at || d == second) continue;
        rest.push_back(p.letters[d]);
        order.push_back(static_cast<int64_t>(d));
      }
      order.push_back(static_cast<int64_t>(at));
      order.push_back(static_cast<int64_t>(second));
      const int64_t n = extent(l), axis = static_cast<int64_t>(rest.size());
      // If a letter occurs three times, letters and dimensions do not correspond yet, so extents are read
      // from the value.
      Dims flat;
      const Dims dims = g_.dims(p.value);
      for (size_t d = 0; d < rest.size(); ++d) flat.push_back(dims[static_cast<size_t>(order[d])]);
      flat.push_back(n * n);
      const ValueId pairs = g_.reshape(g_.transpose(p.value, order), flat);
      p.value = g_.op("slice", {pairs, g_.ints({0}), g_.ints({n * n}), g_.ints({axis}), g_.ints({n + 1})});
      rest.push_back(l);
      p.letters = rest;
      second = 0;
    }
    return p;
  }

  /// Sums over letters that occur neither in the result nor in another operand.
  Part own_sums(const std::vector<Part>& parts, size_t i) {
    Part p = parts[i];
    std::vector<int64_t> axes;
    EinsumLetters kept;
    for (size_t d = 0; d < p.letters.size(); ++d) {
      const size_t l = p.letters[d];
      bool is_needed = has_letter(plan_.result, l);
      for (size_t j = 0; j < parts.size(); ++j)
        is_needed = is_needed || (j != i && has_letter(parts[j].letters, l));
      if (is_needed) kept.push_back(l);
      if (!is_needed) axes.push_back(static_cast<int64_t>(d));
    }
    return {g_.reduce_sum(p.value, axes, false), kept};
  }

  EinsumLetters needed_after(const std::vector<Part>& parts, size_t i) const {
    EinsumLetters all = plan_.result;
    for (size_t j = i + 1; j < parts.size(); ++j)
      all.insert(all.end(), parts[j].letters.begin(), parts[j].letters.end());
    return all;
  }

  ValueId ordered(const Part& p, const EinsumLetters& to) {
    std::vector<int64_t> order;
    for (size_t l : to) order.push_back(std::find(p.letters.begin(), p.letters.end(), l) - p.letters.begin());
    return std::is_sorted(order.begin(), order.end()) ? p.value : g_.transpose(p.value, order);
  }

  /// a [batch, m, k] times b [batch, k, n]: letters are sorted by which operand has them; k is needed by
  /// nobody later.
  Part contracted(const Part& a, const Part& b, const EinsumLetters& later) {
    EinsumLetters batch, m, n, k;
    for (size_t l : a.letters)
      (!has_letter(b.letters, l) ? m : has_letter(later, l) ? batch : k).push_back(l);
    for (size_t l : b.letters) {
      if (!has_letter(a.letters, l)) n.push_back(l);
    }
    const auto joined = [](EinsumLetters x, const EinsumLetters& y, const EinsumLetters& z) {
      x.insert(x.end(), y.begin(), y.end());
      x.insert(x.end(), z.begin(), z.end());
      return x;
    };
    const ValueId left =
        g_.reshape(ordered(a, joined(batch, m, k)), {size(batch), size(m), k.empty() ? 1 : size(k)});
    const ValueId right =
        g_.reshape(ordered(b, joined(batch, k, n)), {size(batch), k.empty() ? 1 : size(k), size(n)});
    const ValueId y = k.empty() ? g_.mul(left, right) : g_.op("matmul", {left, right});
    const EinsumLetters letters = joined(batch, m, n);
    return {g_.reshape(y, extents(letters)), letters};
  }

  ValueId finished(const Part& p) {
    EinsumLetters order;
    for (size_t l : plan_.result) {
      if (has_letter(p.letters, l)) order.push_back(l);
    }
    return g_.reshape(ordered(p, order), extents(plan_.result));
  }

  GradBuilder& g_;
  const EinsumPlan& plan_;
};

}  // namespace

std::vector<ValueId> expand_einsum(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  GradBuilder g(graph, node, {});
  std::vector<tensor::Shape> shapes;
  for (ValueId id : node.in) shapes.push_back(g.type(id).shape);
  const EinsumPlan plan = parse_einsum(node.attrs.get_string("equation", ""), shapes);
  return {Expander(g, plan).run()};
}

}  // namespace trireme::ops
