// Cut rules of quantization. Letters: from 'a' on the dimensions of a tensor or the rows of a product, 'o'
// the output channels.
#include "ops/quant/quant_cuts.h"

#include "ops/cut_notation.h"
#include "ops/quant/qproduct.h"

namespace trireme::ops {

using Q = QOperand;

ir::CutRule quantize_cut(const ir::NodeView& n) {
  const size_t rank = n.in[0].shape.rank(), scale_rank = n.in[1].shape.rank();
  std::string x = letters(rank);
  CutNotation notation(n);
  if (scale_rank > 0 && rank > 0) {
    const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 1), rank);
    std::string scale = x;
    if (scale_rank == 1 && rank >= 1 && n.attrs.get_int("block_size", 0) == 0) {
      scale = n.in_dims(1)[0] == 1 ? "." : x.substr(axis, 1);
    } else {
      // Blocks along the axis share a scale, so the axis stays whole.
      x[axis] = '.';
      scale = scale_rank == rank ? x : dots(scale_rank);
    }
    notation.in(1, scale).in(2, scale);
  }
  notation.in(0, x).out(0, x);
  return {.notation = notation.text()};
}

namespace {

/// Scales, zero points and biases with one element per output channel get the same letter.
void name_channels(CutNotation& notation, const ir::NodeView& n, char letter) {
  for (size_t i : {Q::w_scale, Q::w_zero, Q::bias}) {
    const bool is_vector = n.present(i) && n.in[i].shape.rank() == 1 && n.in_dims(i)[0] > 1;
    if (is_vector) notation.in(i, {letter});
  }
}

/// The letter of the output channels; '.' if a vector has another number of elements.
char channel_letter(const ir::NodeView& n, int64_t channels) {
  for (size_t i : {Q::w_scale, Q::w_zero, Q::bias}) {
    const bool is_vector = n.present(i) && n.in[i].shape.rank() == 1 && n.in_dims(i)[0] > 1;
    if (is_vector && n.in_dims(i)[0] != channels) return '.';
  }
  return 'o';
}

}  // namespace

ir::CutRule qlinear_cut(const ir::NodeView& n) {
  const std::string rows = letters(n.in[Q::x].shape.rank() - 1);
  const bool transposed = n.attrs.get_int("transposed", 0) != 0;
  CutNotation notation(n);
  const char o = channel_letter(n, n.in_dims(Q::w)[transposed ? 0 : 1]);
  notation.in(Q::x, rows + ".").in(Q::w, transposed ? std::string{o, '.'} : std::string{'.', o});
  notation.out(0, rows + o);
  name_channels(notation, n, o);
  return {.notation = notation.text()};
}

/// Operands a, a_scale, a_zero, b, ...: the rows of a may be cut, each possibly with a scale of its own.
ir::CutRule qlinear_matmul_cut(const ir::NodeView& n) {
  CutNotation notation(n);
  const size_t rank = n.in[0].shape.rank();
  if (rank < 2 || n.in[3].shape.rank() != 2) return {.notation = notation.text()};
  const std::string rows = letters(rank - 1);
  notation.in(0, rows + ".").out(0, rows + ".");
  for (size_t i : {1, 2}) {
    if (n.present(i) && n.in[i].shape.rank() == 1 && n.in_dims(i)[0] > 1) notation.in(i, {rows.back()});
  }
  return {.notation = notation.text()};
}

ir::CutRule qconv_nhwc_cut(const ir::NodeView& n) {
  const char o = n.attrs.get_int("group", 1) == 1 ? channel_letter(n, n.in_dims(Q::w)[0]) : '.';
  CutNotation notation(n);
  notation.in(Q::x, "a...").in(Q::w, {o, '.', '.', '.'}).out(0, {'a', '.', '.', o});
  name_channels(notation, n, o);
  return {.notation = notation.text()};
}

ir::CutRule qadd_cut(const ir::NodeView& n) {
  const std::string x = letters(n.in[0].shape.rank());
  return {.notation = CutNotation(n).in(0, x).in(3, x).out(0, x).text()};
}

}  // namespace trireme::ops
