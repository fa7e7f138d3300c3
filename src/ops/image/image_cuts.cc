// Cut rules of image sampling. Letters: n image, c channel, and from 'p' on the points of a grid.
#include "ops/image/image_cuts.h"

#include "ops/cut_notation.h"
#include "ops/image/resize_plan.h"

namespace trireme::ops {
namespace {

/// Letters of images and channels if resizing leaves these axes unchanged. `forward` has x and y of resize.
std::string kept(const ir::NodeView& forward) {
  const size_t rank = forward.in[0].shape.rank();
  std::string text = dots(rank);
  if (rank < 3 || !sizes_are_extents(forward)) return text;
  const std::vector<bool> stays = kept_axes(forward);
  for (size_t d = 0; d < 2; ++d) {
    if (stays[d]) text[d] = "nc"[d];
  }
  return text;
}

/// Letters of a grid [n, points..., axes]: those of the points between `before` and `after`.
std::string points_of(const ir::NodeView& n, size_t grid, const std::string& before,
                      const std::string& after) {
  return before + letters(n.in[grid].shape.rank() - 2, 'p') + after;
}

}  // namespace

ir::CutRule resize_cut(const ir::NodeView& n) {
  const std::string x = kept(n);
  return {.notation = CutNotation(n).in(0, x).out(0, x).text(), .linear = {1}};
}

ir::CutRule resize_grad_cut(const ir::NodeView& n) {
  const bool has_sizes = n.value(3) != nullptr && n.value(3)->elements() > 0;
  if (has_sizes) {  // sizes are those of the whole, which a part does not have
    const std::string none = dots(n.in[0].shape.rank());
    return {.notation = CutNotation(n).in(0, none).out(0, none).text(), .linear = {1}};
  }
  ir::NodeView forward = n;
  forward.in[0] = n.out[0];
  forward.known[0] = nullptr;
  forward.out = {n.in[0]};
  const std::string x = kept(forward);
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
