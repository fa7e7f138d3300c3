// Cut rules of image sampling. Letters: n image, c channel, from 'p' on points of a grid.
#include "ops/image/image_cuts.h"

#include "ops/cut_notation.h"

namespace trireme::ops {
namespace {

/// Images and channels, where sampling leaves them alone.
std::string kept(const tensor::Dims& x, const tensor::Dims& y, bool has_sizes) {
  std::string text = dots(x.size());
  for (size_t d = 0; d < 2 && d < x.size() && x.size() > 2; ++d) {
    if (x[d] == y[d] && !has_sizes) text[d] = "nc"[d];
  }
  return text;
}

/// Letters of the points [n, points..., axes] that are sampled, with others around them.
std::string points_of(const ir::NodeView& n, size_t grid, const std::string& before,
                      const std::string& after) {
  return before + letters(n.in[grid].shape.rank() - 2, 'p') + after;
}

}  // namespace

ir::CutRule resize_cut(const ir::NodeView& n) {
  const std::string x = kept(n.in_dims(0), n.out_dims(0), n.present(3));
  return {.notation = CutNotation(n).in(0, x).out(0, x).text(), .linear = {1}};
}

ir::CutRule resize_grad_cut(const ir::NodeView& n) {
  const std::string x = kept(n.out_dims(0), n.in_dims(0), n.present(3));
  return {.notation = CutNotation(n).in(0, x).out(0, x).text(), .linear = {1}};
}

ir::CutRule grid_sample_cut(const ir::NodeView& n) {
  const std::string x = "nc" + dots(n.in[0].shape.rank() - 2);
  CutNotation notation(n);
  notation.in(0, x).in(1, points_of(n, 1, "n", ".")).out(0, points_of(n, 1, "nc", ""));
  return {.notation = notation.text(), .linear = {1}};
}

ir::CutRule grid_sample_grad_x_cut(const ir::NodeView& n) {
  CutNotation notation(n);
  notation.in(0, points_of(n, 1, "nc", "")).in(1, points_of(n, 1, "n", "."));
  notation.out(0, "nc" + dots(n.out[0].shape.rank() - 2));
  return {.notation = notation.text(), .sums = points_of(n, 1, "", ""), .linear = {1}};
}

ir::CutRule grid_sample_grad_grid_cut(const ir::NodeView& n) {
  const std::string grid = points_of(n, 2, "n", ".");
  CutNotation notation(n);
  notation.in(0, points_of(n, 2, "nc", "")).in(1, "nc" + dots(n.in[1].shape.rank() - 2)).in(2, grid);
  notation.out(0, grid);
  return {.notation = notation.text(), .sums = "c", .linear = {0b01, 0b10}};
}

}  // namespace trireme::ops
