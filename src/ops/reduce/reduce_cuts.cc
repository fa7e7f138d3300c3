// Cut rules of reductions and scans.
#include "ops/cut.h"
#include "ops/reduce/reduce.h"
#include "ops/shape/shape_rules.h"

namespace trireme::ops {
namespace {

/// Letters of the result of a reduction of `x`: '.' (keepdims) or nothing where a dimension was reduced.
std::string reduced_letters(const ir::NodeView& n, const std::string& x, const std::vector<bool>& reduced) {
  const bool keeps = n.attrs.get_int("keepdims", 1) != 0;
  std::string y;
  for (size_t d = 0; d < x.size(); ++d) {
    if (!reduced[d])
      y += x[d];
    else if (keeps)
      y += '.';
  }
  return y;
}

/// Kept dimensions after a reduced one: if a part has fewer elements in them, its sums are added in another
/// order and may differ in the last bits.
std::string behind_reduced(const std::string& x, const std::vector<bool>& reduced) {
  std::string letters;
  bool is_behind = false;
  for (size_t d = 0; d < x.size(); ++d) {
    is_behind = is_behind || reduced[d];
    if (is_behind && !reduced[d]) letters += x[d];
  }
  return letters;
}

}  // namespace

ir::CutFn reduce_cut(Reduction reduction) {
  return [reduction](const ir::NodeView& n) {
    const std::vector<bool> reduced = reduced_axes(n);
    std::string x = cut_letters(reduced.size());
    ir::CutRule rule{.uneven = x};
    const bool adds =
        reduction == Reduction::sum || reduction == Reduction::l1 || reduction == Reduction::sum_square;
    for (size_t d = 0; d < x.size(); ++d) {
      if (!reduced[d]) continue;
      if (adds)
        rule.sums += x[d];
      else if (reduction == Reduction::max)
        rule.maxes += x[d];
      else
        x[d] = '.';
    }
    if (reduction != Reduction::max && reduction != Reduction::min) rule.own = behind_reduced(x, reduced);
    rule.notation = x +
                    (n.in.size() < 2 ? ""
                     : n.present(1)  ? ",."
                                     : ",") +
                    "->" + reduced_letters(n, x, reduced);
    if (reduction == Reduction::sum || reduction == Reduction::mean) rule.linear = {0b1};
    return rule;
  };
}

ir::CutRule arg_cut(const ir::NodeView& n) {
  const size_t rank = n.in[0].shape.rank();
  std::vector<bool> reduced(rank);
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), rank);
  reduced[axis] = true;
  std::string x = cut_letters(rank);
  x[axis] = '.';
  return {.notation = x + "->" + reduced_letters(n, x, reduced), .uneven = x};
}

ir::CutFn scan_cut(size_t axis_operand, std::vector<uint32_t> linear) {
  return [axis_operand, linear](const ir::NodeView& n) {
    const size_t rank = n.in[0].shape.rank();
    const auto axis = known_ints(n, axis_operand);
    std::string x = axis ? cut_letters(rank) : std::string(rank, '.');
    if (axis) x[ir::normal_axis(axis->at(0), rank)] = '.';
    ir::CutRule rule{.linear = linear, .uneven = x};
    for (size_t i = 0; i < axis_operand; ++i) rule.notation += x + ",";
    rule.notation += std::string(n.in[axis_operand].shape.rank(), '.') + "->" + x;
    return rule;
  };
}

}  // namespace trireme::ops
