// Cut rules of lookups by index. Indices refer to the whole table, so the indexed dimension stays whole.
#include "ops/index/index_cuts.h"

#include "ops/cut.h"
#include "ops/index/index_ops.h"

namespace trireme::ops {
namespace {

using ir::CutRule;
using ir::NodeView;

/// Letters for the dimensions in which indices have x's extent; `axis` stays whole.
std::string elementwise_letters(const tensor::Shape& x, const tensor::Shape& indices, int64_t axis) {
  std::string letters = cut_letters(x.rank());
  for (size_t d = 0; d < letters.size(); ++d) {
    if (x[d] != indices[d]) letters[d] = '.';
  }
  letters[ir::normal_axis(axis, x.rank())] = '.';
  return letters;
}

}  // namespace

CutRule gather_elements_cut(const NodeView& n) {
  const std::string x = elementwise_letters(n.in[0].shape, n.in[1].shape, n.attrs.get_int("axis", 0));
  return {.notation = x + "," + x + "->" + x, .linear = {0b1}, .uneven = x};
}

CutRule gather_nd_cut(const NodeView& n) {
  const tensor::Shape &x = n.in[0].shape, &at = n.in[1].shape;
  const size_t batch = static_cast<size_t>(n.attrs.get_int("batch_dims", 0));
  const size_t depth = static_cast<size_t>(at[at.rank() - 1].value());
  const std::string tuples = cut_letters(at.rank() - 1);
  const std::string inner = cut_letters(x.rank() - batch - depth, tuples.size());
  return {.notation = tuples.substr(0, batch) + std::string(depth, '.') + inner + "," + tuples + ".->" +
                      tuples + inner,
          .linear = {0b1},
          .uneven = tuples + inner};
}

CutRule scatter_elements_cut(const NodeView& n) {
  const tensor::Shape &x = n.in[0].shape, &at = n.in[1].shape;
  const ScatterMode mode = scatter_mode(n.attrs);
  std::string letters = elementwise_letters(x, at, n.attrs.get_int("axis", 0));
  if (n.in[2].shape != at) letters.assign(x.rank(), '.');
  CutRule rule{.notation = letters + "," + letters + ",", .uneven = letters};
  rule.notation += n.in[2].shape == at ? letters : std::string(n.in[2].shape.rank(), '.');
  rule.notation += "->" + letters;
  if (mode == ScatterMode::none || mode == ScatterMode::add) rule.linear = {0b101};
  return rule;
}

CutRule scatter_nd_cut(const NodeView& n) {
  const tensor::Shape &x = n.in[0].shape, &at = n.in[1].shape;
  const size_t depth = static_cast<size_t>(at[at.rank() - 1].value());
  const ScatterMode mode = scatter_mode(n.attrs);
  const std::string inner = cut_letters(x.rank() - depth);
  const std::string whole(at.rank() - 1, '.');
  const std::string table = std::string(depth, '.') + inner;
  CutRule rule{.notation = table + "," + whole + ".," + whole + inner + "->" + table, .uneven = inner};
  if (mode == ScatterMode::none || mode == ScatterMode::add) rule.linear = {0b101};
  return rule;
}

}  // namespace trireme::ops
