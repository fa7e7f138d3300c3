// Gradient rules of trilu, pad, center_crop_pad, reverse_sequence and col2im.
#include "ops/shape/fill_ops.h"

namespace trireme::ops {

Gradients trilu_rule(GradBuilder& g) {
  Gradients out = g.none();
  std::vector<ValueId> in{g.grad()};
  if (g.has(1)) in.push_back(g.in(1));
  out[0] = g.op("trilu", in, g.attrs());
  return out;
}

Gradients pad_rule(GradBuilder& g) {
  Gradients out = g.none();
  const std::string mode = g.attrs().get_string("mode", "constant");
  std::vector<ValueId> in{g.grad(), g.in(1)};
  if (mode == "constant") {
    // Padding is cut off, and what was cropped gets zeros.
    std::vector<int64_t> pads = g.known(1)->to_ints();
    for (int64_t& p : pads) p = -p;
    in[1] = g.ints(pads);
    if (g.has(3)) in.insert(in.end(), {ir::kNoValue, g.in(3)});
    out[0] = g.op("pad", in);
    if (!g.has(2)) return out;
    const auto total = [&](ValueId v) {
      const int64_t count = tensor::element_count(g.dims(v));
      return g.reduce_sum(g.reshape(v, {count}), {0}, false);
    };
    out[2] = g.reshape(g.sub(total(g.grad()), total(*out[0])), g.dims(g.in(2)));
    return out;
  }
  if (g.has(3)) in.insert(in.end(), {ir::kNoValue, g.in(3)});
  out[0] = g.op("pad_grad", in, {{"mode", mode}, {"shape", g.dims(g.in(0))}});
  return out;
}

Gradients center_crop_pad_rule(GradBuilder& g) {
  const tensor::Dims x = g.dims(g.in(0));
  const std::vector<int64_t> axes = g.attrs().get_ints("axes");
  std::vector<int64_t> extents = x;
  if (!axes.empty()) {
    extents.clear();
    for (int64_t a : axes) extents.push_back(x[ir::normal_axis(a, x.size())]);
  }
  return {g.op("center_crop_pad", {g.grad(), g.ints(extents)}, g.attrs()), std::nullopt};
}

Gradients reverse_sequence_rule(GradBuilder& g) {
  return {g.op("reverse_sequence", {g.grad(), g.in(1)}, g.attrs()), std::nullopt};
}

Gradients col2im_rule(GradBuilder& g) {
  return {g.op("im2col", {g.grad(), g.in(1), g.in(2)}, g.attrs()), std::nullopt, std::nullopt};
}

}  // namespace trireme::ops
