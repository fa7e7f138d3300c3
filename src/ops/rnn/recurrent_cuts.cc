// Cut rules of rnn, gru and lstm: only the batch b can be cut, because hidden channels all read each other.
#include "ops/rnn/recurrent_cuts.h"

#include "ops/cut_notation.h"

namespace trireme::ops {
namespace {

/// Letters of x, y and states; the batch is the first or second dimension.
struct Layout {
  std::string x, y, state;
};

Layout layout_of(const ir::NodeView& n) {
  const bool batch_first = n.attrs.get_int("layout", 0) != 0;
  return batch_first ? Layout{"b..", "b...", "b.."} : Layout{".b.", "..b.", ".b."};
}

void name_operands(CutNotation& notation, const Layout& l) {
  notation.in(0, l.x).in(4, "b").in(5, l.state).in(6, l.state);
}

}  // namespace

ir::CutRule recurrent_cut(const ir::NodeView& n) {
  const Layout l = layout_of(n);
  CutNotation notation(n);
  name_operands(notation, l);
  notation.out(0, l.y).out(1, l.state).out(2, l.state);
  return {.notation = notation.text()};
}

/// Operands: those of the forward op, then gradients of its results. Results: gradients of x, w, r, b,
/// initial_h, initial_c, peepholes.
ir::CutRule recurrent_grad_cut(const ir::NodeView& n) {
  const Layout l = layout_of(n);
  CutNotation notation(n);
  name_operands(notation, l);
  notation.in(8, l.y).in(9, l.state).in(10, l.state).out(0, l.x).out(4, l.state).out(5, l.state);
  uint32_t arriving = 0;
  for (size_t i : {8, 9, 10}) arriving |= n.present(i) ? 1u << i : 0u;
  return {.notation = notation.text(), .sums = "b", .linear = {arriving}};
}

}  // namespace trireme::ops
