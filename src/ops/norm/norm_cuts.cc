// Cut rules of normalisations. Letters: b batch, c channel, and from 'e' on the other dimensions.
#include "ops/norm/norm_cuts.h"

#include "ops/cut_notation.h"

namespace trireme::ops {
namespace {

/// Letters of an operand's dimensions; those of `axes` stay whole.
std::string all_but(const ir::NodeView& n, const std::vector<int64_t>& axes, size_t operand = 0) {
  const size_t rank = n.in[operand].shape.rank();
  std::string x = letters(rank);
  for (int64_t axis : axes) x[ir::normal_axis(axis, rank)] = '.';
  return x;
}

/// Letters of the leading axes of layer_norm and rms_norm; the normalised axes stay whole.
std::string row_letters(const ir::NodeView& n, size_t operand) {
  const size_t rank = n.in[operand].shape.rank();
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), rank);
  return letters(axis) + dots(rank - axis);
}

std::string without_dots(std::string text) {
  std::erase(text, '.');
  return text;
}

}  // namespace

ir::CutRule batch_norm_cut(const ir::NodeView& n) {
  const size_t rank = n.in[0].shape.rank();
  std::string x = rank < 2 ? std::string(rank, '.') : "bc" + letters(rank - 2, 'e');
  const bool of_batch = n.attrs.get_int("training_mode", 0) != 0;
  for (char& letter : x) {
    if (of_batch && letter != 'c') letter = '.';
  }
  CutNotation notation(n);
  notation.in(0, x).out(0, x);
  if (rank >= 2) {
    for (size_t i = 1; i < 5; ++i) notation.in(i, "c");
    notation.out(1, "c").out(2, "c");
  }
  return {.notation = notation.text()};
}

namespace {

/// Letters "b..c": the batch first and the channels at `axis`.
std::string image(const ir::NodeView& n, size_t operand) {
  const size_t rank = n.in[operand].shape.rank();
  std::string x = dots(rank);
  x[0] = 'b';
  x[ir::normal_axis(n.attrs.get_int("axis", 1), rank)] = 'c';
  return x;
}

}  // namespace

ir::CutRule batch_norm_train_cut(const ir::NodeView& n) {
  const std::string x = image(n, 0);
  CutNotation notation(n);
  notation.in(0, x).in(1, "c").in(2, "c").in(3, x);
  notation.out(0, x).out(1, "c").out(2, "c").out(3, "c");
  return {.notation = notation.text(), .own = "b"};
}

/// dscale and dbias are sums over the rows of each part, with its own statistics. Operands 0 and 7 are the
/// summands of dy.
ir::CutRule batch_norm_grad_cut(const ir::NodeView& n) {
  const std::string x = image(n, 1);
  CutNotation notation(n);
  notation.in(0, x).in(1, x).in(2, "c").in(3, "c").in(4, "c").in(5, "c").in(6, x).in(7, x);
  notation.out(0, x).out(1, "c").out(2, "c").out(3, x);
  return {.notation = notation.text(), .sums = "b", .own = "b", .linear = {n.present(7) ? 1u | 1u << 7 : 1u}};
}

ir::CutRule group_norm_cut(const ir::NodeView& n) {
  const size_t rank = n.in[0].shape.rank();
  if (rank < 2) return {.notation = CutNotation(n).text()};
  const std::string x = "bc" + dots(rank - 2);
  CutNotation notation(n);
  notation.in(0, x).in(1, "c").in(2, "c").out(0, x);
  const int64_t groups = n.attrs.get_int("num_groups", n.in_dims(0)[1]);
  return {.notation = notation.text(), .units = {{'c', groups}}};
}

void localise_group_norm(ir::LocalNode& n) {
  share_count(n, "num_groups", n.in[0][1], n.global.in_dims(0)[1]);
}

ir::CutRule group_norm_nhwc_cut(const ir::NodeView& n) {
  const std::string x = "b" + dots(n.in[0].shape.rank() - 2) + "c";
  CutNotation notation(n);
  notation.in(0, x).in(1, "c").in(2, "c").out(0, x);
  return {.notation = notation.text(), .units = {{'c', n.attrs.need_int("num_groups")}}};
}

void localise_group_norm_nhwc(ir::LocalNode& n) {
  share_count(n, "num_groups", n.in[0].back(), n.global.in_dims(0).back());
}

ir::CutRule row_norm_cut(const ir::NodeView& n) {
  const std::string x = row_letters(n, 0);
  CutNotation notation(n);
  notation.in(0, x).out(0, x).out(1, x).out(2, x);
  return {.notation = notation.text()};
}

/// The operands are dy, x, scale, add: dx is linear in dy and add together, the sums in dy only.
ir::CutRule row_norm_grad_cut(const ir::NodeView& n) {
  const std::string x = row_letters(n, 1);
  CutNotation notation(n);
  notation.in(0, x).in(1, x).in(3, x).out(0, x);
  return {.notation = notation.text(), .sums = without_dots(x), .linear = {n.present(3) ? 1u | 1u << 3 : 1u}};
}

ir::CutRule add_layer_norm_cut(const ir::NodeView& n) {
  const std::string x = all_but(n, {-1});
  CutNotation notation(n);
  notation.in(0, x).in(1, x).out(0, x).out(1, x);
  return {.notation = notation.text()};
}

ir::CutRule masked_mean_pool_cut(const ir::NodeView& n) {
  CutNotation notation(n);
  notation.in(0, "b.d").in(1, "b.").out(0, "bd");
  return {.notation = notation.text(), .linear = {1}};
}

ir::CutRule lp_norm_cut(const ir::NodeView& n) {
  const int64_t axis = n.attrs.get_int("axis", -1);
  const std::string x = all_but(n, {axis});
  CutNotation notation(n);
  notation.in(0, x).out(0, x);
  // With fewer elements after the axis, its sums are added in another order.
  return {.notation = notation.text(), .own = x.substr(ir::normal_axis(axis, x.size()) + 1)};
}

ir::CutRule mean_variance_cut(const ir::NodeView& n) {
  const std::string x = all_but(n, n.attrs.get_ints("axes", {0, 2, 3}));
  CutNotation notation(n);
  notation.in(0, x).out(0, x);
  return {.notation = notation.text()};
}

ir::CutRule lrn_cut(const ir::NodeView& n) {
  const std::string x = all_but(n, {1});
  CutNotation notation(n);
  notation.in(0, x).in(1, x).out(0, x);
  return {.notation = notation.text(),
          .linear = n.in.size() > 1 ? std::vector<uint32_t>{1} : std::vector<uint32_t>{}};
}

}  // namespace trireme::ops
