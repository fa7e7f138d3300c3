// Gradient rules of gather*, scatter* and compress.
#include "ops/index/index_ops.h"

#include "ops/grad.h"

namespace trireme::ops {
namespace {

ValueId scatter_add(GradBuilder& g, ValueId indices, ValueId updates, const char* op, ir::Attrs attrs) {
  attrs.set("reduction", std::string("add"));
  return g.op(op, {g.zeros_like(g.in(0)), indices, updates}, std::move(attrs));
}

/// Prepends to each tuple its position in the batch dimensions, so that batch_dims becomes 0.
ValueId with_batch_coordinates(GradBuilder& g, size_t batch_dims) {
  const tensor::Dims at = g.dims(g.in(1));
  tensor::Dims dims = at;
  dims.back() = static_cast<int64_t>(batch_dims);
  tensor::Tensor coordinates = tensor::Tensor::empty(tensor::DType::i64, dims);
  const auto out = coordinates.mutable_data<int64_t>();
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i / batch_dims);  // index of the tuple
    for (size_t d = at.size() - 1; d-- > 0;) {
      if (d == i % batch_dims) out[i] = rest % at[d];
      rest /= at[d];
    }
  }
  return g.op("concat", {g.constant(coordinates), g.in(1)}, {{"axis", static_cast<int64_t>(at.size()) - 1}});
}

/// The differences between the scatter rules of elements and of tuples.
struct ScatterForm {
  const char* scatter;
  const char* gather;
  ir::Attrs attrs;  // without the reduction
};

/// Elements that equal the result of a maximum or minimum share its gradient evenly.
Gradients extreme_scatter(GradBuilder& g, const ScatterForm& form, ValueId indices, ValueId updates) {
  const ValueId dy = g.grad(), y = g.out();
  const auto hits = [&](ValueId v, ValueId top) { return g.op("cast_like", {g.op("equal", {v, top}), v}); };
  const ValueId own = hits(g.in(0), y);
  const ValueId theirs = hits(updates, g.op(form.gather, {y, indices}, form.attrs));
  ir::Attrs add = form.attrs;
  add.set("reduction", std::string("add"));
  const ValueId count = g.op(form.scatter, {own, indices, theirs}, add);
  const ValueId share = g.div(dy, count);
  return {g.mul(own, share), std::nullopt, g.mul(theirs, g.op(form.gather, {share, indices}, form.attrs))};
}

Gradients scatter_rule(GradBuilder& g, const ScatterForm& form, ValueId updates) {
  const ValueId dy = g.grad(), indices = g.in(1);
  const ScatterMode mode = scatter_mode(g.attrs());
  const auto found = [&](ValueId v) { return g.op(form.gather, {v, indices}, form.attrs); };
  if (mode == ScatterMode::add) return {dy, std::nullopt, found(dy)};
  if (mode == ScatterMode::none) {
    return {g.op(form.scatter, {dy, indices, g.zeros_like(updates)}, form.attrs), std::nullopt, found(dy)};
  }
  if (mode == ScatterMode::mul) {
    ir::Attrs by = form.attrs;
    by.set("reduction", std::string("mul"));
    // The gradient of an update is dy times the product of the others, y / u, which is undefined where u is
    // 0.
    return {g.op(form.scatter, {dy, indices, updates}, by), std::nullopt,
            g.div(found(g.mul(dy, g.out())), updates)};
  }
  return extreme_scatter(g, form, indices, updates);
}

}  // namespace

Gradients gather_rule(GradBuilder& g) {
  const tensor::Dims x = g.dims(g.in(0));
  ir::Attrs attrs{{"axis", g.attrs().get_int("axis", 0)}, {"shape", x}};
  if (g.attrs().has("padding_idx")) attrs.set("padding_idx", g.attrs().need_int("padding_idx"));
  return {g.op("gather_grad", {g.grad(), g.in(1)}, attrs), std::nullopt};
}

Gradients gather_elements_rule(GradBuilder& g) {
  return {scatter_add(g, g.in(1), g.grad(), "scatter_elements", {{"axis", g.attrs().get_int("axis", 0)}}),
          std::nullopt};
}

Gradients gather_nd_rule(GradBuilder& g) {
  const size_t batch_dims = static_cast<size_t>(g.attrs().get_int("batch_dims", 0));
  const ValueId indices = batch_dims == 0 ? g.in(1) : with_batch_coordinates(g, batch_dims);
  return {scatter_add(g, indices, g.grad(), "scatter_nd", {}), std::nullopt};
}

Gradients scatter_elements_rule(GradBuilder& g) {
  const ScatterForm form{"scatter_elements", "gather_elements", {{"axis", g.attrs().get_int("axis", 0)}}};
  Gradients out = scatter_rule(g, form, g.reshape(g.in(2), g.dims(g.in(1))));
  out[2] = g.reshape(*out[2], g.dims(g.in(2)));
  return out;
}

Gradients scatter_nd_rule(GradBuilder& g) {
  return scatter_rule(g, {"scatter_nd", "gather_nd", {}}, g.in(2));
}

/// Where the result has a fixed size the condition is known, so compress is a gather.
Gradients compress_rule(GradBuilder& g) {
  const tensor::Dims x = g.dims(g.in(0));
  base::require(g.known(1) != nullptr, "compress with a computed condition has no gradient");
  const bool has_axis = g.attrs().has("axis");
  const size_t axis = has_axis ? ir::normal_axis(g.attrs().need_int("axis"), x.size()) : 0;
  const tensor::Dims shape = has_axis ? x : tensor::Dims{tensor::element_count(x)};
  const auto keeps = g.known(1)->data<bool>();
  std::vector<int64_t> kept;
  for (size_t i = 0; i < keeps.size(); ++i) {
    if (keeps[i]) kept.push_back(static_cast<int64_t>(i));
  }
  const ValueId dx =
      g.op("gather_grad", {g.grad(), g.ints(kept)}, {{"axis", static_cast<int64_t>(axis)}, {"shape", shape}});
  return {g.reshape(dx, x), std::nullopt};
}

}  // namespace trireme::ops
