// shape, size, constant_of_shape, range, eye_like, trilu, one_hot: make tensors from shapes and numbers.
#include "ops/shape/fill_ops.h"

#include <algorithm>
#include <cmath>

#include "ops/elementwise/cast.h"
#include "ops/shape/shape_cuts.h"

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using Types = std::vector<tensor::TensorType>;

constexpr const char* kNoGrad = "its result does not depend on the elements of floating point operands";

Types infer_shape(const NodeView& n) {
  if (!n.in[0].shape.has_rank()) return {{DType::i64, Shape::unknown(1)}};
  const auto [from, to] = shape_range(n);
  return {{DType::i64, {static_cast<int64_t>(to - from)}}};
}

Types infer_constant_of_shape(const NodeView& n) {
  const tensor::Tensor value = n.attrs.get_tensor("value");
  const DType dtype = value.defined() ? value.dtype() : DType::f32;
  base::require(!value.defined() || value.elements() == 1, "constant_of_shape: value must hold one element");
  if (const auto dims = known_ints(n, 0)) return {{dtype, Shape::of(*dims)}};
  const auto rank = length_of(n, 0);
  return {{dtype, rank ? Shape::unknown(static_cast<size_t>(*rank)) : Shape::unknown_rank()}};
}

Types infer_range(const NodeView& n) {
  if (n.value(0) == nullptr || n.value(1) == nullptr || n.value(2) == nullptr) {
    return {{n.in[0].dtype, Shape::unknown(1)}};
  }
  return {{n.in[0].dtype, {range_count(*n.value(0), *n.value(1), *n.value(2))}}};
}

Types infer_eye_like(const NodeView& n) {
  base::require(!n.in[0].shape.has_rank() || n.in[0].shape.rank() == 2, "eye_like takes a matrix");
  return {{n.attrs.has("dtype") ? dtype_from_onnx(n.attrs.need_int("dtype")) : n.in[0].dtype, n.in[0].shape}};
}

Types infer_one_hot(const NodeView& n) {
  Dim depth = Dim::unknown();
  if (n.value(1) != nullptr) {
    const int64_t count = n.value(1)->to_ints().at(0);
    base::require(count >= 0, "one_hot: depth is negative");
    depth = count;
  }
  if (!n.in[0].shape.has_rank()) return {{n.in[2].dtype, Shape::unknown_rank()}};
  DimList out = n.in[0].shape.dims();
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), out.size() + 1);
  out.insert(out.begin() + static_cast<int64_t>(axis), depth);
  return {{n.in[2].dtype, Shape(std::move(out))}};
}

Types infer_trilu(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  base::require(!x.has_rank() || x.rank() >= 2, "trilu takes matrices, got ", x.to_string());
  return like(n.in[0], x);
}

/// The first two axes are time and batch in either order; there is one length per batch entry.
Types infer_reverse_sequence(const NodeView& n) {
  const Shape &x = n.in[0].shape, &lengths = n.in[1].shape;
  const int64_t time = n.attrs.get_int("time_axis", 0), batch = n.attrs.get_int("batch_axis", 1);
  base::require((time == 0 && batch == 1) || (time == 1 && batch == 0),
                "reverse_sequence takes batch and time as axes 0 and 1, got ", batch, " and ", time);
  if (!x.has_rank()) return like(n.in[0], x);
  base::require(x.rank() >= 2, "reverse_sequence takes [time, batch, ...], got ", x.to_string());
  const Dim& entries = x[static_cast<size_t>(batch)];
  base::require(!lengths.is_static() || !entries.is_static() || lengths == Shape{entries},
                "reverse_sequence of ", x.to_string(), " with lengths ", lengths.to_string());
  return like(n.in[0], x);
}

Types infer_pad(const NodeView& n) {
  const std::string mode = n.attrs.get_string("mode", "constant");
  base::require(mode == "constant" || mode == "reflect" || mode == "edge" || mode == "wrap",
                "pad: unknown mode '", mode, "'");
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return like(n.in[0], x);
  if (n.value(1) == nullptr || (n.present(3) && n.value(3) == nullptr))
    return like(n.in[0], Shape::unknown(x.rank()));
  const Pads pads = pads_of(n);
  DimList out;
  for (size_t d = 0; d < x.rank(); ++d) {
    int64_t both = 0;
    base::require(!__builtin_add_overflow(pads.before[d], pads.after[d], &both), "pad: the pads overflow");
    out.push_back(plus(x[d], both));
    base::require(mode == "constant" || !x[d].is_static() || x[d].value() > 0 || both == 0, "pad: mode ",
                  mode, " has nothing to repeat in an extent of 0");
  }
  return like(n.in[0], Shape(std::move(out)));
}

Types infer_center_crop_pad(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank() || n.value(1) == nullptr)
    return like(n.in[0], x.has_rank() ? Shape::unknown(x.rank()) : x);
  const std::vector<int64_t> extents = *known_ints(n, 1);
  for (int64_t extent : extents) base::require(extent >= 0, "center_crop_pad to an extent of ", extent);
  const tensor::Dims mark(x.rank(), -1);  // -1: untouched
  const std::vector<int64_t> wanted = crop_targets(n, mark);
  DimList out = x.dims();
  for (size_t d = 0; d < out.size(); ++d) {
    if (wanted[d] >= 0) out[d] = wanted[d];
  }
  return like(n.in[0], Shape(std::move(out)));
}

Types infer_col2im(const NodeView& n) {
  const auto image = known_ints(n, 1), block = known_ints(n, 2);
  const Shape& x = n.in[0].shape;
  if (!image || !block || !x.has_rank()) {
    const auto rank = length_of(n, 1);
    return like(n.in[0], rank ? Shape::unknown(static_cast<size_t>(*rank) + 2) : Shape::unknown_rank());
  }
  base::require(x.rank() == 3 && image->size() == block->size(), "col2im takes [n, c * block, positions]");
  int64_t per_block = 1;
  for (int64_t b : *block) {
    base::require(b >= 1, "col2im: a block of ", b, " is empty");
    per_block = times(per_block, b).value();
  }
  base::require((!x[1].is_static() || x[1].value() % per_block == 0),
                "col2im: channels do not divide by the block");
  int64_t positions = 1;
  for (int64_t p : window_positions(n)) positions = times(positions, p).value();
  base::require(!x[2].is_static() || x[2].value() == positions, "col2im: ", x[2].to_string(),
                " columns, the image has ", positions, " positions");
  DimList out{x[0], x[1].is_static() ? Dim(x[1].value() / per_block) : Dim::unknown()};
  for (int64_t d : *image) out.push_back(d);
  return like(n.in[0], Shape(std::move(out)));
}

ir::OpSchema fill_schema(std::string name, std::string onnx, std::string doc, size_t operands,
                         ir::InferFn infer) {
  ir::OpSchema s{.name = std::move(name), .doc = std::move(doc), .min_in = operands, .max_in = operands};
  s.infer = std::move(infer);
  s.onnx = std::move(onnx);
  return s;
}

Types infer_shape_attr(const NodeView& n) { return like(n.in[0], Shape::of(n.attrs.get_ints("shape"))); }

Types infer_im2col(const NodeView& n) {
  const auto image = known_ints(n, 1), block = known_ints(n, 2);
  const Shape& x = n.in[0].shape;
  if (!image || !block || !x.is_static()) return like(n.in[0], Shape::unknown(3));
  const tensor::Dims dims = x.to_dims();
  base::require(image->size() == block->size() && dims.size() == image->size() + 2,
                "im2col takes [n, c, image...]");
  int64_t positions = 1, per_block = 1;
  for (int64_t p : window_positions(n)) positions = times(positions, p).value();
  for (int64_t b : *block) per_block = times(per_block, b).value();
  return like(n.in[0], {dims[0], times(dims[1], per_block), positions});
}

/// An op that exists only as the gradient of another.
ir::OpDef backward_op(ir::OpSchema s, std::vector<ir::AttrSpec> attrs, std::vector<ir::Kernel> kernels) {
  s.attrs = std::move(attrs);
  s.why_no_grad = "a backward op: second derivatives are not taken";
  return {std::move(s), std::move(kernels)};
}

ir::OpDef without_grad(ir::OpSchema s, std::vector<ir::AttrSpec> attrs, std::vector<ir::Kernel> kernels) {
  s.attrs = std::move(attrs);
  s.why_no_grad = kNoGrad;
  return {std::move(s), std::move(kernels)};
}

}  // namespace

std::pair<size_t, size_t> shape_range(const NodeView& node) {
  const int64_t rank = static_cast<int64_t>(node.in[0].shape.rank());
  const auto at = [rank](int64_t i) {
    return static_cast<size_t>(std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank));
  };
  const size_t from = at(node.attrs.get_int("start", 0));
  return {from, std::max(from, at(node.attrs.get_int("end", rank)))};
}

int64_t range_count(const tensor::Tensor& start, const tensor::Tensor& limit, const tensor::Tensor& delta) {
  if (tensor::is_integer(start.dtype())) {
    const int64_t a = start.to_ints().at(0), b = limit.to_ints().at(0), step = delta.to_ints().at(0);
    base::require(step != 0, "range: delta is 0");
    if (step > 0 ? a >= b : a <= b) return 0;
    const uint64_t span = step > 0 ? static_cast<uint64_t>(b) - static_cast<uint64_t>(a)
                                   : static_cast<uint64_t>(a) - static_cast<uint64_t>(b);
    const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
    return static_cast<int64_t>((span - 1) / stride + 1);
  }
  const double count =
      std::ceil((limit.to_doubles().at(0) - start.to_doubles().at(0)) / delta.to_doubles().at(0));
  base::require(!std::isnan(count) && count < 0x1p62, "range: start, limit and delta give no finite count");
  return static_cast<int64_t>(std::max(0.0, count));
}

Pads pads_of(const NodeView& node) {
  const size_t rank = node.in[0].shape.rank();
  const std::vector<int64_t> pads = *known_ints(node, 1);
  std::vector<int64_t> axes;
  if (node.present(3)) axes = *known_ints(node, 3);
  for (int64_t d = 0; !node.present(3) && d < static_cast<int64_t>(rank); ++d) axes.push_back(d);
  base::require(pads.size() == 2 * axes.size(), "pad: ", pads.size(), " pads for ", axes.size(), " axes");
  for (int64_t p : pads) {
    constexpr int64_t kMost = int64_t{1} << 56;
    base::require(p > -kMost && p < kMost, "pad: ", p, " elements");
  }
  normal_axes(axes, rank);
  Pads out{std::vector<int64_t>(rank, 0), std::vector<int64_t>(rank, 0)};
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t d = ir::normal_axis(axes[i], rank);
    out.before[d] = pads[i];
    out.after[d] = pads[i + axes.size()];
  }
  return out;
}

std::vector<int64_t> crop_targets(const NodeView& node, const tensor::Dims& x) {
  const std::vector<int64_t> wanted = *known_ints(node, 1);
  const std::vector<int64_t> axes = node.attrs.get_ints("axes");
  base::require(wanted.size() == (axes.empty() ? x.size() : axes.size()), "center_crop_pad: ", wanted.size(),
                " extents do not fit the axes");
  std::vector<int64_t> out = x;
  for (size_t i = 0; i < wanted.size(); ++i)
    out[axes.empty() ? i : ir::normal_axis(axes[i], x.size())] = wanted[i];
  return out;
}

std::vector<int64_t> window_positions(const NodeView& n) {
  const std::vector<int64_t> image = *known_ints(n, 1), block = *known_ints(n, 2);
  const size_t rank = image.size();
  const std::vector<int64_t> dilations = n.attrs.get_ints("dilations", std::vector<int64_t>(rank, 1)),
                             pads = n.attrs.get_ints("pads", std::vector<int64_t>(2 * rank, 0)),
                             strides = n.attrs.get_ints("strides", std::vector<int64_t>(rank, 1));
  base::require(dilations.size() == rank && strides.size() == rank && pads.size() == 2 * rank,
                "dilations, strides and pads must fit ", rank, " image dimensions");
  std::vector<int64_t> positions;
  for (size_t d = 0; d < rank; ++d) {
    base::require(strides[d] > 0 && dilations[d] > 0, "strides and dilations must be positive");
    constexpr int64_t kMost = int64_t{1} << 31;
    for (int64_t v : {image[d], block[d], strides[d], dilations[d], pads[d], pads[d + rank]})
      base::require(v < kMost, "image, block, strides, dilations and pads must be below 2^31, got ", v);
    for (int64_t v : {image[d], block[d], pads[d] + kMost, pads[d + rank] + kMost})
      base::require(v >= 0, "image and block must not be negative, pads not below -2^31");
    const int64_t reach = dilations[d] * (block[d] - 1) + 1;
    const int64_t span = image[d] + pads[d] + pads[d + rank] - reach;
    base::require(block[d] >= 1 && span >= 0, "a block of ", block[d], " reaches over ", reach,
                  " of a padded ", span + reach);
    positions.push_back(span / strides[d] + 1);
  }
  return positions;
}

namespace {

void add_cuts(std::vector<ir::OpDef>& ops) {
  const std::vector<std::pair<std::string_view, ir::CutFn>> cuts{{"trilu", trilu_cut},
                                                                 {"pad", pad_cut},
                                                                 {"pad_grad", pad_cut},
                                                                 {"center_crop_pad", center_crop_pad_cut},
                                                                 {"reverse_sequence", reverse_sequence_cut},
                                                                 {"one_hot", one_hot_cut},
                                                                 {"constant_of_shape", constant_of_shape_cut},
                                                                 {"col2im", columns_cut},
                                                                 {"im2col", columns_cut}};
  for (ir::OpDef& op : ops) {
    ir::OpSchema& s = op.schema;
    for (const auto& [name, cut] : cuts) {
      if (s.name == name) s.cut = cut;
    }
    if (!s.cut) s.why_no_cut = "made of extents, indices or numbers, which every rank has";
    if (s.name == "constant_of_shape") s.shape_operand = 0;
    if (s.name == "pad_grad") s.localise = localise_shape;
  }
}

}  // namespace

std::vector<ir::OpDef> fill_ops() {
  std::vector<ir::OpDef> ops;
  ops.push_back(without_grad(
      fill_schema("shape", "Shape", "the extents of x from `start` to `end` as i64", 1, infer_shape),
      {{"start", "int", "default 0"}, {"end", "int", "default rank"}}, shape_cpu_kernels()));
  ops.push_back(without_grad(fill_schema("size", "Size", "number of elements of x as i64", 1,
                                         [](const NodeView&) {
                                           return Types{{DType::i64, Shape{}}};
                                         }),
                             {}, size_cpu_kernels()));
  ops.push_back(
      without_grad(fill_schema("constant_of_shape", "ConstantOfShape",
                               "a tensor of `value` with the given extents", 1, infer_constant_of_shape),
                   {{"value", "tensor", "one element, default 0.0 f32"}}, constant_of_shape_cpu_kernels()));
  ops.push_back(
      without_grad(fill_schema("range", "Range", "start, start + delta, ... before limit", 3, infer_range),
                   {}, range_cpu_kernels()));
  ops.push_back(without_grad(
      fill_schema("eye_like", "EyeLike", "ones on diagonal k of a matrix shaped like x", 1, infer_eye_like),
      {{"k", "int", "default 0"}, {"dtype", "int", "ONNX number, default x's"}}, eye_like_cpu_kernels()));
  ops.push_back({fill_schema("trilu", "Trilu", "the upper or lower triangle of each matrix, zero elsewhere",
                             1, infer_trilu),
                 trilu_cpu_kernels()});
  ops.back().schema.max_in = 2;
  ops.back().schema.attrs = {{"upper", "int", "default 1"}};
  ops.back().schema.grad = rule(trilu_rule);
  ops.push_back(
      {fill_schema("one_hot", "OneHot", "on-value where the new axis's index is indices, off-value elsewhere",
                   3, infer_one_hot),
       one_hot_cpu_kernels()});
  ops.back().schema.attrs = {{"axis", "int", "default -1"}};
  ops.back().schema.why_no_grad = "its indices are integers, its on and off values settings";
  ops.push_back({fill_schema("pad", "Pad", "x with elements added (or cropped) at both ends of each axis", 2,
                             infer_pad),
                 pad_cpu_kernels()});
  ops.back().schema.max_in = 4;
  ops.back().schema.moves = 0b101;
  ops.back().schema.is_rearrangement = true;
  ops.back().schema.attrs = {{"mode", "string", "constant (default), reflect, edge, wrap"}};
  ops.back().schema.grad = rule(pad_rule);
  ops.push_back(backward_op(
      fill_schema("pad_grad", "",
                  "sums of dy over the places each element of x was padded to; operands dy, pads, -, axes", 2,
                  infer_shape_attr),
      {{"mode", "string", "reflect, edge, wrap"}, {"shape", "ints", "extents of x"}},
      pad_grad_cpu_kernels()));
  ops.back().schema.max_in = 4;
  ops.push_back({fill_schema("center_crop_pad", "CenterCropPad", "x cropped or zero padded around its centre",
                             2, infer_center_crop_pad),
                 center_crop_pad_cpu_kernels()});
  ops.back().schema.attrs = {{"axes", "ints", "default all"}};
  ops.back().schema.grad = rule(center_crop_pad_rule);
  ops.push_back({fill_schema("reverse_sequence", "ReverseSequence",
                             "the first lengths[b] steps of each batch reversed", 2, infer_reverse_sequence),
                 reverse_sequence_cpu_kernels()});
  ops.back().schema.attrs = {{"batch_axis", "int", "default 1"}, {"time_axis", "int", "default 0"}};
  ops.back().schema.grad = rule(reverse_sequence_rule);
  ops.push_back(
      {fill_schema("col2im", "Col2Im", "sums columns of blocks back into an image", 3, infer_col2im),
       col2im_cpu_kernels()});
  ops.back().schema.attrs = {{"dilations", "ints", ""}, {"pads", "ints", ""}, {"strides", "ints", ""}};
  ops.back().schema.grad = rule(col2im_rule);
  ops.push_back(backward_op(
      fill_schema("im2col", "", "columns of the blocks of an image; col2im's gradient", 3, infer_im2col),
      ops.back().schema.attrs, im2col_cpu_kernels()));
  add_cuts(ops);
  return ops;
}

}  // namespace trireme::ops
