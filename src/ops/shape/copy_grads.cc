// Gradient rules of views and of ops that copy elements with strides.
#include <algorithm>

#include "ops/shape/copy_ops.h"

namespace trireme::ops {

Gradients view_rule(GradBuilder& g) {
  Gradients out = g.none();
  out[0] = g.reshape(g.grad(), g.dims(g.in(0)));
  return out;
}

Gradients transpose_rule(GradBuilder& g) {
  const size_t rank = g.dims(g.in(0)).size();
  const std::vector<int64_t> perm = g.attrs().get_ints("perm");
  std::vector<int64_t> inverse(rank);
  for (size_t i = 0; i < rank; ++i) {
    const size_t from = perm.empty() ? rank - 1 - i : static_cast<size_t>(perm[i]);
    inverse[from] = static_cast<int64_t>(i);
  }
  return {g.transpose(g.grad(), inverse)};
}

Gradients expand_rule(GradBuilder& g) { return {g.to_operand(g.grad(), 0), std::nullopt}; }

/// Views dy as [repeats, extent] per dimension and sums over the repeats.
Gradients tile_rule(GradBuilder& g) {
  const tensor::Dims x = g.dims(g.in(0)), y = g.dims(g.grad());
  tensor::Dims split;
  std::vector<int64_t> axes;
  for (size_t d = 0; d < x.size(); ++d) {
    const int64_t repeats = x[d] == 0 ? 1 : y[d] / x[d];
    if (repeats != 1) axes.push_back(static_cast<int64_t>(split.size()));
    if (repeats != 1) split.push_back(repeats);
    split.push_back(x[d]);
  }
  return {g.reshape(g.reduce_sum(g.reshape(g.grad(), split), axes, false), x), std::nullopt};
}

/// Each operand has a slice of its own, so that constants beside trained values cost nothing.
Gradients concat_rule(GradBuilder& g) {
  Gradients out = g.none();
  const size_t axis = ir::normal_axis(g.attrs().need_int("axis"), g.dims(g.out()).size());
  int64_t at = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t n = g.dims(g.in(i))[axis];
    out[i] = g.op("slice", {g.grad(), g.ints({at}), g.ints({at + n}), g.ints({static_cast<int64_t>(axis)})});
    at += n;
  }
  return out;
}

Gradients split_rule(GradBuilder& g) {
  Gradients out = g.none();
  tensor::Dims piece = g.dims(g.in(0));
  const size_t axis = ir::normal_axis(g.attrs().get_int("axis", 0), piece.size());
  // Includes the pieces that nothing reads.
  std::vector<int64_t> sizes;
  if (g.known(1) != nullptr) {
    sizes = g.known(1)->to_ints();
  } else {
    const int64_t pieces = g.attrs().get_int("num_outputs", static_cast<int64_t>(g.results()));
    const int64_t size = (piece[axis] + pieces - 1) / pieces;
    for (int64_t left = piece[axis]; left > 0; left -= size) sizes.push_back(std::min(size, left));
  }
  std::vector<ValueId> parts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    piece[axis] = sizes[i];
    if (sizes[i] == 0) continue;
    parts.push_back(g.grad(i) != ir::kNoValue ? g.grad(i) : g.expand(g.scalar(0, g.in(0)), piece));
  }
  out[0] = parts.size() == 1 ? parts[0] : g.op("concat", parts, {{"axis", static_cast<int64_t>(axis)}});
  return out;
}

Gradients slice_rule(GradBuilder& g) {
  Gradients out = g.none();
  std::vector<ValueId> in{g.grad()};
  for (size_t i = 1; i < out.size(); ++i) in.push_back(g.in(i));
  out[0] = g.op("slice_grad", in, {{"shape", g.dims(g.in(0))}});
  return out;
}

Gradients depth_to_space_rule(GradBuilder& g) {
  const int64_t b = g.attrs().need_int("blocksize");
  if (g.attrs().get_string("mode", "DCR") == "DCR")
    return {g.op("space_to_depth", {g.grad()}, {{"blocksize", b}})};
  const tensor::Dims x = g.dims(g.in(0));  // [n, c b b, h, w]; y [n, c, h, b, w, b]
  const ValueId blocks = g.reshape(g.grad(), {x[0], x[1] / (b * b), x[2], b, x[3], b});
  return {g.reshape(g.transpose(blocks, {0, 1, 3, 5, 2, 4}), x)};
}

Gradients space_to_depth_rule(GradBuilder& g) {
  return {g.op("depth_to_space", {g.grad()}, {{"blocksize", g.attrs().need_int("blocksize")}})};
}

}  // namespace trireme::ops
