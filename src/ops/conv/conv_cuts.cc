// Cut rules of convolutions. Letters: n image, c input channel, o output channel, k channel of a grouped
// convolution, whose whole groups of inputs, outputs and weights are cut together.
#include "ops/conv/conv_cuts.h"

#include "ops/conv/window.h"
#include "ops/cut_notation.h"
#include "ops/dense/activation.h"

namespace trireme::ops {
namespace {

int64_t groups_of(const ir::NodeView& n) { return n.attrs.get_int("group", 1); }

/// The letters of input channels, output channels and weights.
struct Channels {
  char in, out, weight_in, weight_out;
};

Channels channels_of(const ir::NodeView& n) {
  return groups_of(n) == 1 ? Channels{'c', 'o', 'c', 'o'} : Channels{'k', 'k', '.', 'k'};
}

/// Images or weights with the two letters first, or the second one last; spatial dimensions stay whole.
std::string first(char a, char b, size_t rank) { return std::string{a, b} + dots(rank - 2); }
std::string last(char a, char b, size_t rank) { return a + dots(rank - 2) + b; }

/// Makes the rule; `sums` names the letters whose cut leaves partial sums, and groups stay whole.
ir::CutRule finish(const ir::NodeView& n, const CutNotation& notation, const std::string& sums) {
  ir::CutRule r{.notation = notation.text(), .sums = sums};
  if (groups_of(n) > 1) r.units = {{'k', groups_of(n)}};
  return r;
}

}  // namespace

ir::CutRule conv_cut(const ir::NodeView& n) {
  Channels l = channels_of(n);
  const size_t rank = n.in[0].shape.rank();
  // A bias must be added only once, so a node with a bias has no partial sums.
  if (n.present(2) && l.in == 'c') l.in = l.weight_in = '.';
  CutNotation notation(n);
  notation.in(0, first('n', l.in, rank)).in(1, first(l.weight_out, l.weight_in, rank)).in(2, {l.out});
  notation.out(0, first('n', l.out, rank));
  ir::CutRule r = finish(n, notation, "c");
  r.linear = {n.present(2) ? 0b101u : 0b001u};
  if (!n.present(2)) r.linear.push_back(0b010);
  return r;
}

ir::CutRule conv_nhwc_cut(const ir::NodeView& n) {
  Channels l = channels_of(n);
  const bool is_plain = activation_of(n.attrs).kind == ActivationKind::none;
  const bool is_product = is_plain && !n.present(2) && !n.present(3);
  if (!is_product && l.in == 'c') l.in = l.weight_in = '.';
  const size_t rank = n.in[0].shape.rank();
  CutNotation notation(n);
  notation.in(0, conv_reads_nchw(n.attrs) ? first('n', l.in, rank) : last('n', l.in, rank));
  notation.in(1, first(l.weight_out, l.weight_in, rank)).in(2, {l.out}).in(3, last('n', l.out, rank));
  notation.out(0, last('n', l.out, rank));
  ir::CutRule r = finish(n, notation, "c");
  if (is_product) r.linear = {0b01, 0b10};
  if (is_plain && !is_product) r.linear = {1u | (n.present(2) ? 4u : 0u) | (n.present(3) ? 8u : 0u)};
  return r;
}

/// w is [c, o / group, spatial...].
ir::CutRule conv_transpose_cut(const ir::NodeView& n) {
  Channels l = channels_of(n);
  const size_t rank = n.in[0].shape.rank();
  const char weight_out = l.out == 'o' ? 'o' : '.';
  if (n.present(2) && l.in == 'c') l.in = '.';
  CutNotation notation(n);
  notation.in(0, first('n', l.in, rank)).in(1, first(l.in, weight_out, rank)).in(2, {l.out});
  notation.out(0, first('n', l.out, rank));
  ir::CutRule r = finish(n, notation, "c");
  r.linear = {n.present(2) ? 0b101u : 0b001u};
  if (!n.present(2)) r.linear.push_back(0b010);
  return r;
}

ir::CutRule conv_grad_w_cut(const ir::NodeView& n) {
  const Channels l = channels_of(n);
  const size_t rank = n.in[0].shape.rank();
  CutNotation notation(n);
  notation.in(0, first('n', l.in, rank)).in(1, first('n', l.out, rank));
  notation.out(0, first(l.weight_out, l.weight_in, rank));
  ir::CutRule r = finish(n, notation, "n");
  r.linear = {0b01, 0b10};
  return r;
}

ir::CutRule conv_nhwc_grad_x_cut(const ir::NodeView& n) {
  const Channels l = channels_of(n);
  const size_t rank = n.in[0].shape.rank();
  CutNotation notation(n);
  notation.in(0, last('n', l.out, rank)).in(1, first(l.weight_out, l.weight_in, rank));
  notation.out(0, last('n', l.in, rank));
  ir::CutRule r = finish(n, notation, l.out == 'o' ? "o" : "");
  r.linear = {0b01, 0b10};
  return r;
}

ir::CutRule conv_nhwc_grad_w_cut(const ir::NodeView& n) {
  const Channels l = channels_of(n);
  const size_t rank = n.in[0].shape.rank();
  CutNotation notation(n);
  notation.in(0, conv_reads_nchw(n.attrs) ? first('n', l.in, rank) : last('n', l.in, rank))
      .in(1, last('n', l.out, rank));
  // The bias's gradient does not depend on input channels: ranks that hold parts of these all compute the
  // whole.
  notation.out(0, first(l.weight_out, l.weight_in, rank)).out(1, {l.out});
  ir::CutRule r = finish(n, notation, "n");
  r.linear = n.out.size() > 1 ? std::vector<uint32_t>{0b10} : std::vector<uint32_t>{0b01, 0b10};
  if (n.out.size() > 1) r.own = {l.out};  // with fewer channels, the bias's sums are added in another order
  return r;
}

namespace {

/// Names a vector with one element per output channel; a scalar stays whole.
void name_channels(CutNotation& notation, const ir::NodeView& n, size_t i, char letter, int64_t channels) {
  if (n.present(i) && n.in[i].shape.rank() == 1 && n.in_dims(i)[0] == channels && channels > 1)
    notation.in(i, {letter});
}

}  // namespace

ir::CutRule conv_integer_cut(const ir::NodeView& n) {
  const size_t rank = n.in[0].shape.rank();
  const char o = groups_of(n) == 1 ? 'o' : '.';
  CutNotation notation(n);
  notation.in(0, first('n', '.', rank)).in(1, first(o, '.', rank)).out(0, first('n', o, rank));
  name_channels(notation, n, 3, o, n.in_dims(1)[0]);
  return {.notation = notation.text()};
}

ir::CutRule qlinear_conv_cut(const ir::NodeView& n) {
  const size_t rank = n.in[0].shape.rank();
  const char o = groups_of(n) == 1 ? 'o' : '.';
  CutNotation notation(n);
  notation.in(0, first('n', '.', rank)).in(3, first(o, '.', rank)).out(0, first('n', o, rank));
  for (size_t i : {4, 5, 8}) name_channels(notation, n, i, o, n.in_dims(3)[0]);
  return {.notation = notation.text()};
}

/// The operands are x, w, offset, bias, mask.
ir::CutRule deform_conv_cut(const ir::NodeView& n) {
  const size_t rank = n.in[0].shape.rank();
  const char o = groups_of(n) == 1 ? 'o' : '.';
  CutNotation notation(n);
  notation.in(0, first('n', '.', rank)).in(1, first(o, '.', rank)).in(3, {o}).out(0, first('n', o, rank));
  for (size_t i : {2, 4}) {
    if (n.present(i)) notation.in(i, first('n', '.', n.in[i].shape.rank()));
  }
  return {.notation = notation.text()};
}

namespace {

/// `local` of `global` channels hold the same share of the groups.
void share_groups(ir::LocalNode& n, int64_t local, int64_t global) {
  if (n.global.attrs.get_int("group", 1) > 1) share_count(n, "group", local, global);
}

}  // namespace

void localise_conv(ir::LocalNode& n) { share_groups(n, n.in[1][0], n.global.in_dims(1)[0]); }
void localise_conv_grad_w(ir::LocalNode& n) { share_groups(n, n.out[0][0], n.global.out_dims(0)[0]); }

}  // namespace trireme::ops
