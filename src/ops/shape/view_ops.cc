// Views: reshape, flatten, squeeze, unsqueeze give the bytes of an operand another shape.
#include <algorithm>

#include "ops/shape/copy_ops.h"
#include "ops/shape/shape_cuts.h"
#include "ops/shape/shape_rules.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::Dim;
using tensor::Shape;

/// The product of the dims in [from, to), which may be symbolic if all others are 1.
Dim product(const Shape& s, size_t from, size_t to) {
  Dim total = 1;
  for (size_t i = from; i < to; ++i) {
    if (s[i].is_static() && s[i].value() == 1) continue;
    if (total.is_static() && total.value() == 1) {
      total = s[i];
    } else if (total.is_static() && s[i].is_static()) {
      total = times(total, s[i].value());
    } else {
      return Dim::unknown();
    }
  }
  return total;
}

/// The extent for -1: the elements of x divided by the product of the other extents. Symbols that occur on
/// both sides cancel.
Dim missing_dim(const Shape& x, const std::vector<Dim>& target, size_t hole) {
  if (!x.has_rank()) return Dim::unknown();
  std::vector<std::string> above;
  int64_t numbers_above = 1, numbers_below = 1;
  for (const Dim& d : x.dims()) {
    if (d.is_static())
      numbers_above = times(numbers_above, d.value()).value();
    else
      above.push_back(d.name());
  }
  for (size_t i = 0; i < target.size(); ++i) {
    if (i == hole) continue;
    if (target[i].is_static()) {
      numbers_below = times(numbers_below, target[i].value()).value();
      continue;
    }
    const auto at = std::find(above.begin(), above.end(), target[i].name());
    if (at == above.end() || target[i].is_unknown()) return Dim::unknown();
    above.erase(at);
  }
  if (above.empty()) {
    base::require(numbers_below != 0, "reshape: any extent fits behind -1 beside an extent of 0, of ",
                  x.to_string());
    base::require(numbers_above % numbers_below == 0, "reshape: ", x.to_string(),
                  " does not divide into the shape");
    return numbers_above / numbers_below;
  }
  if (above.size() == 1 && above[0] != "?" && numbers_above == numbers_below) return Dim::symbol(above[0]);
  return Dim::unknown();
}

Shape reshape_target(const Shape& x, const std::vector<int64_t>& wanted, bool allow_zero) {
  Shape out = Shape::unknown(wanted.size());
  std::optional<size_t> hole;
  for (size_t i = 0; i < wanted.size(); ++i) {
    base::require(wanted[i] >= -1, "reshape: extent ", wanted[i], " is negative");
    if (wanted[i] == -1) {
      base::require(!hole, "reshape: two extents are -1");
      hole = i;
    } else if (wanted[i] == 0 && !allow_zero) {
      if (!x.has_rank()) continue;
      base::require(i < x.rank(), "reshape: extent 0 at ", i, " has nothing to copy from ", x.to_string());
      out[i] = x[i];
    } else {
      out[i] = wanted[i];
    }
  }
  if (hole) out[*hole] = missing_dim(x, out.dims(), *hole);
  const auto before = x.elements(), after = out.elements();
  base::require(!before || !after || *before == *after, "reshape: ", x.to_string(), " cannot become ",
                out.to_string());
  return out;
}

std::vector<tensor::TensorType> infer_reshape(const NodeView& n) {
  const bool allow_zero = n.attrs.get_int("allowzero", 0) != 0;
  if (const auto wanted = known_ints(n, 1))
    return like(n.in[0], reshape_target(n.in[0].shape, *wanted, allow_zero));
  const auto rank = length_of(n, 1);
  return like(n.in[0], rank ? Shape::unknown(static_cast<size_t>(*rank)) : Shape::unknown_rank());
}

std::vector<tensor::TensorType> infer_flatten(const NodeView& n) {
  if (!n.in[0].shape.has_rank()) return like(n.in[0], Shape::unknown(2));
  const size_t rank = n.in[0].shape.rank();
  const int64_t axis = n.attrs.get_int("axis", 1);
  const size_t at = axis == static_cast<int64_t>(rank) ? rank : ir::normal_axis(axis, rank);
  return like(n.in[0], {product(n.in[0].shape, 0, at), product(n.in[0].shape, at, rank)});
}

std::vector<tensor::TensorType> infer_squeeze(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  const auto axes = known_ints(n, 1);
  if (!x.has_rank() || (n.present(1) && !axes)) return like(n.in[0], Shape::unknown_rank());
  DimList out;
  const std::vector<size_t> drop = normal_axes(axes.value_or(std::vector<int64_t>{}), x.rank());
  for (size_t i = 0; i < x.rank(); ++i) {
    const bool is_one = x[i].is_static() && x[i].value() == 1;
    const bool is_named = std::find(drop.begin(), drop.end(), i) != drop.end();
    base::require(!is_named || is_one || !x[i].is_static(), "squeeze: axis ", i, " of ", x.to_string(),
                  " is not 1");
    if (!axes && !x[i].is_static()) return like(n.in[0], Shape::unknown_rank());
    if (axes ? !is_named : !is_one) out.push_back(x[i]);
  }
  return like(n.in[0], Shape(std::move(out)));
}

std::vector<tensor::TensorType> infer_unsqueeze(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  const auto axes = known_ints(n, 1);
  if (!x.has_rank()) return like(n.in[0], Shape::unknown_rank());
  if (!axes) {
    const auto more = length_of(n, 1);
    return like(n.in[0],
                more ? Shape::unknown(x.rank() + static_cast<size_t>(*more)) : Shape::unknown_rank());
  }
  const size_t rank = x.rank() + axes->size();
  const std::vector<size_t> added = normal_axes(*axes, rank);
  DimList out;
  for (size_t i = 0, from = 0; i < rank; ++i) {
    const bool is_new = std::find(added.begin(), added.end(), i) != added.end();
    out.push_back(is_new ? Dim(1) : x[from++]);
  }
  return like(n.in[0], Shape(std::move(out)));
}

ir::OpSchema view_schema(std::string name, std::string onnx, std::string doc, ir::InferFn infer) {
  return {.name = std::move(name),
          .doc = std::move(doc),
          .moves = 0b1,
          .is_rearrangement = true,
          .cut = view_cut,
          .infer = std::move(infer),
          .grad = rule(view_rule),
          .onnx = std::move(onnx),
          .is_view = true};
}

}  // namespace

std::vector<ir::OpDef> view_ops() {
  std::vector<ir::OpDef> ops;
  ops.push_back({view_schema("reshape", "Reshape", "y = x with the extents `shape`; 0 copies, -1 is computed",
                             infer_reshape),
                 {}});
  ops.back().schema.min_in = ops.back().schema.max_in = 2;
  ops.back().schema.attrs = {{"allowzero", "int", "1: an extent of 0 means 0"}};
  ops.back().schema.shape_operand = 1;
  ops.push_back({view_schema("flatten", "Flatten", "y [product of dims before axis, product of the others]",
                             infer_flatten),
                 {}});
  ops.back().schema.attrs = {{"axis", "int", "default 1"}};
  ops.push_back(
      {view_schema("squeeze", "Squeeze", "y = x without the axes (default: all) of extent 1", infer_squeeze),
       {}});
  ops.back().schema.max_in = 2;
  ops.back().schema.cut = squeeze_cut;
  ops.push_back(
      {view_schema("unsqueeze", "Unsqueeze", "y = x with axes of extent 1 added", infer_unsqueeze), {}});
  ops.back().schema.min_in = ops.back().schema.max_in = 2;
  return ops;
}

}  // namespace trireme::ops
