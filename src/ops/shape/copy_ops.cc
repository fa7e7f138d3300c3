// transpose, expand, tile, concat, split, slice, depth_to_space, space_to_depth: ops that copy elements with
// strides.
#include "ops/shape/copy_ops.h"

#include <algorithm>

#include "ops/shape/shape_cuts.h"
#include "ops/shape/shape_rules.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::Dim;
using tensor::Shape;
using Types = std::vector<tensor::TensorType>;

Types infer_transpose(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return like(n.in[0], x);
  const std::vector<int64_t> perm = n.attrs.get_ints("perm");
  base::require(perm.empty() || perm.size() == x.rank(), "transpose: perm has ", perm.size(),
                " entries for rank ", x.rank());
  std::vector<bool> seen(x.rank(), false);
  DimList out;
  for (size_t i = 0; i < x.rank(); ++i) {
    const int64_t p = perm.empty() ? static_cast<int64_t>(x.rank() - 1 - i) : perm[i];
    base::require(p >= 0 && p < static_cast<int64_t>(x.rank()) && !seen[static_cast<size_t>(p)],
                  "transpose: perm is not a permutation");
    seen[static_cast<size_t>(p)] = true;
    out.push_back(x[static_cast<size_t>(p)]);
  }
  return like(n.in[0], Shape(std::move(out)));
}

Types infer_expand(const NodeView& n) {
  if (const auto wanted = known_ints(n, 1)) {
    for (int64_t d : *wanted) base::require(d >= 0, "expand: extent ", d, " is negative");
    return like(n.in[0], ir::broadcast(n.in[0].shape, Shape::of(*wanted)));
  }
  const auto rank = length_of(n, 1);
  if (!rank || !n.in[0].shape.has_rank()) return like(n.in[0], Shape::unknown_rank());
  return like(n.in[0], Shape::unknown(std::max(static_cast<size_t>(*rank), n.in[0].shape.rank())));
}

Types infer_tile(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  const auto repeats = known_ints(n, 1);
  if (!x.has_rank()) return like(n.in[0], x);
  if (!repeats) return like(n.in[0], Shape::unknown(x.rank()));
  base::require(repeats->size() == x.rank(), "tile: ", repeats->size(), " repeats for rank ", x.rank());
  DimList out;
  for (size_t i = 0; i < x.rank(); ++i) {
    base::require((*repeats)[i] >= 0, "tile: repeat ", (*repeats)[i], " is negative");
    out.push_back(times(x[i], (*repeats)[i]));
  }
  return like(n.in[0], Shape(std::move(out)));
}

Types infer_concat(const NodeView& n) {
  const auto ranked =
      std::find_if(n.in.begin(), n.in.end(), [](const auto& t) { return t.shape.has_rank(); });
  if (ranked == n.in.end()) return like(n.in[0], Shape::unknown_rank());
  DimList out = ranked->shape.dims();
  const size_t axis = ir::normal_axis(n.attrs.need_int("axis"), out.size());
  Dim total = 0;
  for (const tensor::TensorType& t : n.in) {
    base::require(t.dtype == n.in[0].dtype, "concat: operands of types ", name_of(t.dtype), " and ",
                  name_of(n.in[0].dtype));
    if (!t.shape.has_rank()) {
      total = Dim::unknown();
      continue;
    }
    base::require(t.shape.rank() == out.size(), "concat: operands of ranks ", t.shape.rank(), " and ",
                  out.size());
    for (size_t d = 0; d < out.size(); ++d) {
      if (d == axis || out[d] == t.shape[d] || !t.shape[d].is_static()) continue;
      base::require(!out[d].is_static(), "concat: extents ", out[d].to_string(), " and ",
                    t.shape[d].to_string(), " on axis ", d);
      out[d] = t.shape[d];
    }
    const Dim& more = t.shape[axis];
    if (total.is_static() && total.value() == 0) {
      total = more;
    } else {
      total = total.is_static() && more.is_static()   ? plus(total, more.value())
              : more.is_static() && more.value() == 0 ? total
                                                      : Dim::unknown();
    }
  }
  out[axis] = total;
  return like(n.in[0], Shape(std::move(out)));
}

/// Sizes of the pieces: from the operand, or equal ones of which the last may be smaller.
std::vector<int64_t> split_sizes(const NodeView& n, int64_t extent) {
  if (const auto sizes = known_ints(n, 1)) {
    int64_t total = 0;
    for (int64_t s : *sizes) {
      base::require(s >= 0, "split: size ", s, " is negative");
      base::require(s <= extent - total, "split: a size of ", s, " of the ", extent - total,
                    " that are left of ", extent);
      total += s;
    }
    base::require(total == extent, "split: sizes add up to ", total, " of an extent of ", extent);
    base::require(sizes->size() >= n.out_count, "split: ", sizes->size(), " sizes for ", n.out_count,
                  " results");
    return *sizes;
  }
  const int64_t pieces = n.attrs.get_int("num_outputs", static_cast<int64_t>(n.out_count));
  base::require(pieces >= 1 && pieces <= (1 << 20), "split into ", pieces, " pieces");
  base::require(pieces >= 1 && pieces >= static_cast<int64_t>(n.out_count), "split: ", pieces, " pieces for ",
                n.out_count, " results");
  const int64_t size = (extent + pieces - 1) / pieces;
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < pieces; ++i) sizes.push_back(std::clamp<int64_t>(extent - i * size, 0, size));
  return sizes;
}

Types infer_split(const NodeView& n) {
  Types out(n.out_count, n.in[0]);
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return out;
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.rank());
  if (const auto sizes = known_ints(n, 1); sizes && !x[axis].is_static()) {
    for (size_t i = 0; i < out.size() && i < sizes->size(); ++i) out[i].shape[axis] = (*sizes)[i];
    return out;
  }
  if ((n.present(1) && !n.value(1)) || !x[axis].is_static()) {
    for (tensor::TensorType& t : out) t.shape[axis] = Dim::unknown();
    return out;
  }
  const std::vector<int64_t> sizes = split_sizes(n, x[axis].value());
  for (size_t i = 0; i < out.size(); ++i) out[i].shape[axis] = sizes[i];
  return out;
}

Types infer_slice(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return like(n.in[0], x);
  const auto axes = known_ints(n, 3);
  const auto starts = known_ints(n, 1), ends = known_ints(n, 2), steps = known_ints(n, 4);
  DimList out = x.dims();
  if (n.present(3) && !axes) return like(n.in[0], Shape::unknown(x.rank()));
  const auto count = axes ? std::optional(static_cast<int64_t>(axes->size())) : length_of(n, 1);
  if (!count) return like(n.in[0], Shape::unknown(x.rank()));
  const bool is_known = starts && ends && (steps || !n.present(4));
  base::require(axes || *count <= static_cast<int64_t>(x.rank()), "slice: ", *count, " starts for rank ",
                x.rank());
  if (is_known) {
    base::require(static_cast<int64_t>(starts->size()) == *count && ends->size() == starts->size() &&
                      (!steps || steps->size() == starts->size()),
                  "slice: starts, ends, axes and steps differ in length");
  }
  if (axes) normal_axes(*axes, x.rank());
  for (int64_t i = 0; i < *count; ++i) {
    const size_t k = static_cast<size_t>(i);
    const size_t d = axes ? ir::normal_axis((*axes)[k], x.rank()) : k;
    const int64_t step = is_known && steps ? (*steps)[k] : 1;
    const bool is_whole = is_known && step == 1 && (*starts)[k] == 0 && (*ends)[k] >= INT32_MAX;
    if (is_whole) continue;
    out[d] = is_known && x[d].is_static()
                 ? Dim(slice_range((*starts)[k], (*ends)[k], step, x[d].value()).count)
                 : Dim::unknown();
  }
  return like(n.in[0], Shape(std::move(out)));
}

Types infer_slice_grad(const NodeView& n) { return like(n.in[0], Shape::of(n.attrs.get_ints("shape"))); }

/// x [n, c, h, w] with channels multiplied by `depth` and space by `space`; one of the factors is a division.
Types infer_blocks(const NodeView& n, bool to_space) {
  const Shape& x = n.in[0].shape;
  const int64_t b = n.attrs.need_int("blocksize");
  base::require(b >= 1 && b <= 1 << 20, "blocksize must be positive and at most 2^20, got ", b);
  if (!x.has_rank()) return like(n.in[0], Shape::unknown(4));
  base::require(x.rank() == 4, "depth and space ops take [n, c, h, w], got ", x.to_string());
  const auto divided = [&](const Dim& d, int64_t by) -> Dim {
    if (!d.is_static()) return by == 1 ? d : Dim::unknown();
    base::require(d.value() % by == 0, "extent ", d.value(), " does not divide by ", by);
    return d.value() / by;
  };
  if (to_space) return like(n.in[0], {x[0], divided(x[1], b * b), times(x[2], b), times(x[3], b)});
  return like(n.in[0], {x[0], times(x[1], b * b), divided(x[2], b), divided(x[3], b)});
}

ir::OpSchema copy_schema(std::string name, std::string onnx, std::string doc, size_t max_in,
                         ir::InferFn infer) {
  ir::OpSchema s{.name = std::move(name),
                 .doc = std::move(doc),
                 .moves = 0b1,
                 .is_rearrangement = true,
                 .max_in = max_in};
  s.infer = std::move(infer);
  s.onnx = std::move(onnx);
  s.cost = [](const NodeView& n) {
    double bytes = 0;
    for (const tensor::TensorType& t : n.out) bytes += 2.0 * static_cast<double>(tensor::bytes_of(t));
    return ir::Cost{0, bytes};
  };
  return s;
}

}  // namespace

std::vector<ir::OpDef> copy_ops() {
  std::vector<ir::OpDef> ops;
  using Rule = Gradients (*)(GradBuilder&);
  const auto add = [&ops](ir::OpSchema s, std::vector<ir::AttrSpec> attrs, ir::Kernel kernel, Rule gradient) {
    s.attrs = std::move(attrs);
    s.grad = rule(gradient);
    ops.push_back({std::move(s), {std::move(kernel)}});
  };
  add(copy_schema("transpose", "Transpose", "y = x with its dimensions in the order perm (default: reversed)",
                  1, infer_transpose),
      {{"perm", "ints", "result dimension i is x's perm[i]"}}, copy_kernel(plan_transpose), transpose_rule);
  add(copy_schema("expand", "Expand", "y = x repeated to the broadcast of its shape and `shape`", 2,
                  infer_expand),
      {}, copy_kernel(plan_expand), expand_rule);
  add(copy_schema("tile", "Tile", "y = x repeated `repeats` times along each dimension", 2, infer_tile), {},
      copy_kernel(plan_tile), tile_rule);
  add(copy_schema("concat", "Concat", "y = the operands one after another along axis", ir::kVariadic,
                  infer_concat),
      {{"axis", "int", "required"}}, copy_kernel(plan_concat), concat_rule);
  ops.back().schema.moves = 0xffffffffu;
  add(copy_schema("split", "Split", "pieces of x along axis", 2, infer_split),
      {{"axis", "int", "default 0"}, {"num_outputs", "int", "even pieces, when no sizes are given"}},
      copy_kernel(plan_split), split_rule);
  ops.back().schema.max_out = ir::kVariadic;
  add(copy_schema("slice", "Slice", "y = x[start:end:step] along each axis", 5, infer_slice), {},
      copy_kernel(plan_slice, needs_values({1, 2, 3, 4})), slice_rule);
  ops.back().schema.min_in = 3;
  ops.push_back(
      {copy_schema("slice_grad", "", "zeros of `shape` with dy at x[start:end:step]; operands as of slice", 5,
                   infer_slice_grad),
       {slice_grad_cpu_kernel()}});
  ops.back().schema.min_in = 3;
  ops.back().schema.precision = kUnknown;
  ops.back().schema.attrs = {{"shape", "ints", "extents of the sliced tensor"}};
  ops.back().schema.why_no_grad = "a backward op: second derivatives are not taken";
  add(copy_schema("depth_to_space", "DepthToSpace", "blocks of channels become blocks of space", 1,
                  [](const NodeView& n) { return infer_blocks(n, true); }),
      {{"blocksize", "int", "required"}, {"mode", "string", "DCR (default) or CRD"}},
      copy_kernel(plan_depth_to_space), depth_to_space_rule);
  add(copy_schema("space_to_depth", "SpaceToDepth", "blocks of space become blocks of channels", 1,
                  [](const NodeView& n) { return infer_blocks(n, false); }),
      {{"blocksize", "int", "required"}}, copy_kernel(plan_space_to_depth), space_to_depth_rule);
  const std::vector<std::pair<std::string_view, ir::CutFn>> cuts{
      {"transpose", transpose_cut},   {"expand", expand_cut},         {"tile", tile_cut},
      {"concat", concat_cut},         {"split", split_cut},           {"slice", slice_cut},
      {"slice_grad", slice_grad_cut}, {"depth_to_space", blocks_cut}, {"space_to_depth", blocks_cut}};
  for (ir::OpDef& op : ops) {
    ir::OpSchema& s = op.schema;
    if (s.name == "expand" || s.name == "tile") s.min_in = 2;
    if (s.name == "expand") s.shape_operand = 1;
    if (s.name == "slice_grad") s.localise = localise_shape;
    for (const auto& [name, cut] : cuts) {
      if (s.name == name) s.cut = cut;
    }
  }
  return ops;
}

}  // namespace trireme::ops
