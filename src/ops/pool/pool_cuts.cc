// Cut rules of pooling. Letters: n image, c channel, r region.
#include "ops/pool/pool_cuts.h"

#include "ops/cut_notation.h"

namespace trireme::ops {
namespace {

/// Notation for operands and results [n, c, spatial...] or [n, spatial..., c].
std::string pool_notation(const ir::NodeView& n, bool is_last) {
  CutNotation notation(n);
  const size_t rank = n.in[0].shape.rank();
  std::string x = is_last ? "n" + dots(rank - 2) + "c" : "nc" + dots(rank - 2);
  // Positions of maxima refer to the whole tensor, so nothing is cut if they are a result.
  if (n.out.size() > 1 && n.out[1].shape.rank() > 0) x = dots(rank);
  for (size_t i = 0; i < n.in.size(); ++i) notation.in(i, x);
  for (size_t i = 0; i < n.out.size(); ++i) notation.out(i, x);
  return notation.text();
}

}  // namespace

ir::CutRule pool_cut(const ir::NodeView& n) { return {.notation = pool_notation(n, false)}; }
ir::CutRule linear_pool_cut(const ir::NodeView& n) {
  return {.notation = pool_notation(n, false), .linear = {1}};
}
ir::CutRule max_pool_grad_cut(const ir::NodeView& n) {
  return {.notation = pool_notation(n, false), .linear = {0b10}};
}
ir::CutRule pool_nhwc_cut(const ir::NodeView& n) { return {.notation = pool_notation(n, true)}; }
ir::CutRule linear_pool_nhwc_cut(const ir::NodeView& n) {
  return {.notation = pool_notation(n, true), .linear = {1}};
}
ir::CutRule max_pool_nhwc_grad_cut(const ir::NodeView& n) {
  return {.notation = pool_notation(n, true), .linear = {0b10}};
}

ir::CutRule roi_cut(const ir::NodeView& n) {
  return {.notation = CutNotation(n).in(0, ".c..").in(1, "r.").in(2, "r").out(0, "rc..").text()};
}

ir::CutRule roi_align_grad_cut(const ir::NodeView& n) {
  CutNotation notation(n);
  notation.in(0, ".c..").in(1, "r.").in(2, "r").in(3, "rc..").out(0, ".c..");
  return {.notation = notation.text(), .sums = "r", .linear = {1u << 3}};
}

}  // namespace trireme::ops
