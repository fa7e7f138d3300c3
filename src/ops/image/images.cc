// resize, upsample, grid_sample, affine_grid: types and cost.
#include "ops/image/image_cuts.h"
#include "ops/image/image_kernels.h"
#include "ops/image/resize_plan.h"
#include "ops/shape/shape_cuts.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

std::vector<TensorType> infer_resize(const ir::NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return {n.in[0]};
  if (!x.is_static()) {
    // An axis keeps its extent, even an unknown one, if all scales are known and its scale is 1.
    Shape y = Shape::unknown(x.rank());
    const tensor::Tensor* scales = n.value(n.in.size() > 2 ? 2 : 1);
    const bool by_axis = scales != nullptr && scales->elements() == static_cast<int64_t>(x.rank());
    for (size_t i = 0; by_axis && i < x.rank(); ++i) {
      const double scale = scales->to_doubles()[i];
      if (scale == 1.0) {
        y[i] = x[i];
      } else if (x[i].is_static()) {
        const double extent = scaled_extent(scale, x[i].value());
        base::require(extent >= 0 && extent < double(1 << 30), "resize by ", scale);
        y[i] = Dim(static_cast<int64_t>(extent));
      }
    }
    const tensor::Tensor* sizes = n.value(3);
    const bool stretch = n.attrs.get_string("keep_aspect_ratio_policy", "stretch") == "stretch";
    if (sizes != nullptr && stretch && sizes->elements() == static_cast<int64_t>(x.rank())) {
      y = Shape::of(sizes->to_ints());
    }
    return {{n.in[0].dtype, y}};
  }
  const std::optional<ResizeTarget> target = resize_target(n);
  bool may_come = false;  // an operand whose values are known only at run time
  for (size_t i = 1; i < n.in.size(); ++i) may_come |= n.present(i) && n.value(i) == nullptr;
  base::require(target.has_value() || may_come, "resize has neither scales nor sizes");
  return {{n.in[0].dtype, target ? Shape::of(target->out) : Shape::unknown(x.rank())}};
}

ir::Cost resize_cost(const ir::NodeView& n) {
  const double taps = n.attrs.get_string("mode", "nearest") == "nearest" ? 0 : 4;
  return {.flop = 2 * taps * static_cast<double>(n.out[0].shape.elements().value_or(0)),
          .bytes = static_cast<double>(tensor::bytes_of(n.in[0]) + tensor::bytes_of(n.out[0]))};
}

ir::OpSchema resize() {
  return {.name = "resize",
          .doc = "samples x on a grid of other extents; operands x, roi, scales, sizes",
          .cut = resize_cut,
          .shape_operand = 3,
          .min_in = 1,
          .max_in = 4,
          .attrs = {{"antialias", "int", "widen the kernel when shrinking"},
                    {"axes", "ints", "axes that scales, sizes and roi speak of, default all"},
                    {"coordinate_transformation_mode", "string",
                     "half_pixel, half_pixel_symmetric, pytorch_half_pixel, align_corners, asymmetric, "
                     "tf_crop_and_resize, tf_half_pixel_for_nn"},
                    {"cubic_coeff_a", "float", "default -0.75"},
                    {"exclude_outside", "int", "taps outside the image weigh nothing"},
                    {"extrapolation_value", "float", "result outside the image of tf_crop_and_resize"},
                    {"keep_aspect_ratio_policy", "string", "stretch, not_larger or not_smaller"},
                    {"mode", "string", "nearest, linear or cubic"},
                    {"nearest_mode", "string", "round_prefer_floor, round_prefer_ceil, floor or ceil"}},
          .infer = infer_resize,
          .cost = resize_cost,
          .grad = rule(resize_rule),
          .onnx = "Resize"};
}

ir::OpSchema upsample() {
  return {.name = "upsample",
          .doc = "resize by scales with asymmetric coordinates, nearest rounds down; operands x, scales",
          .cut = resize_cut,
          .min_in = 2,
          .max_in = 2,
          .attrs = {{"mode", "string", "nearest or linear"}},
          .infer = infer_resize,
          .cost = resize_cost,
          .grad = rule(upsample_rule),
          .onnx = "Upsample"};
}

std::vector<TensorType> infer_grid_sample(const ir::NodeView& n) {
  const Shape &x = n.in[0].shape, &grid = n.in[1].shape;
  if (!x.has_rank() || !grid.has_rank()) return {{n.in[0].dtype, Shape::unknown_rank()}};
  base::require(x.rank() >= 3 && grid.rank() == x.rank(), "grid_sample of ", x.to_string(), " at ",
                grid.to_string());
  const Dim& last = grid[grid.rank() - 1];
  base::require(!last.is_static() || last.value() == static_cast<int64_t>(x.rank()) - 2, "grid_sample grid ",
                grid.to_string(), " for ", x.to_string());
  for (size_t i = 2; i < x.rank(); ++i)
    base::require(!x[i].is_static() || x[i].value() > 0, "grid_sample of ", x.to_string(),
                  ", which has no point");
  std::vector<Dim> out{x[0], x[1]};
  for (size_t i = 1; i + 1 < grid.rank(); ++i) out.push_back(grid[i]);
  return {{n.in[0].dtype, Shape(std::move(out))}};
}

ir::OpSchema grid_sample() {
  return {
      .name = "grid_sample",
      .doc =
          "samples x [n, c, spatial...] at grid [n, out..., axes] of coordinates in [-1, 1], last axis first",
      .cut = grid_sample_cut,
      .min_in = 2,
      .max_in = 2,
      .attrs = {{"align_corners", "int", "-1 and 1 are the centres of the corner elements"},
                {"mode", "string", "linear, nearest or cubic"},
                {"padding_mode", "string", "zeros, border or reflection"}},
      .infer = infer_grid_sample,
      .grad = rule(grid_sample_rule),
      .onnx = "GridSample"};
}

ir::OpSchema affine_grid() {
  return {.name = "affine_grid",
          .doc = "sampling grid of the affine map theta [n, d, d + 1] for a result of shape `size`",
          .why_no_cut = "its operand `size` names the extents of the whole grid",
          .min_in = 2,
          .max_in = 2,
          .attrs = {{"align_corners", "int", "-1 and 1 are the centres of the corner elements"}},
          .infer =
              [](const ir::NodeView& n) {
                const Shape& theta = n.in[0].shape;
                const tensor::Tensor* size = n.value(1);
                if (size == nullptr) {
                  const bool is_static = n.in[1].shape.is_static();
                  const int64_t rank = is_static ? n.in[1].shape.elements().value_or(0) : 0;
                  const Shape y =
                      rank > 0 ? Shape::unknown(static_cast<size_t>(rank)) : Shape::unknown_rank();
                  return std::vector<TensorType>{{n.in[0].dtype, y}};
                }
                const tensor::Dims dims = size->to_ints();
                base::require(dims.size() == 4 || dims.size() == 5, "affine_grid of rank ", dims.size());
                const int64_t axes = static_cast<int64_t>(dims.size()) - 2;
                base::require(!theta.is_static() || theta == Shape{Dim(dims[0]), Dim(axes), Dim(axes + 1)},
                              "affine_grid maps ", theta.to_string(), " for size ", tensor::to_string(dims));
                tensor::Dims out{dims[0]};
                out.insert(out.end(), dims.begin() + 2, dims.end());
                out.push_back(axes);
                return std::vector<TensorType>{{n.in[0].dtype, Shape::of(out)}};
              },
          .grad = rule(affine_grid_rule),
          .onnx = "AffineGrid"};
}

constexpr const char* kSecond = "a backward op: second derivatives are not taken";

ir::OpSchema resize_grad() {
  ir::OpSchema s = resize();
  s.name = "resize_grad";
  s.doc = "the transposed map of resize (or upsample); operands dy, then those of the forward op";
  s.cut = resize_grad_cut;
  s.shape_operand = {};
  s.localise = localise_shape;
  s.attrs.push_back({"shape", "ints", "extents of x"});
  s.attrs.push_back({"upsample", "int", "1: of upsample"});
  s.infer = [](const ir::NodeView& n) {
    return std::vector<TensorType>{{n.in[0].dtype, Shape::of(n.attrs.get_ints("shape"))}};
  };
  s.grad = {};
  s.why_no_grad = kSecond;
  s.onnx = "";
  return s;
}

ir::OpSchema grid_sample_grad_x() {
  ir::OpSchema s = grid_sample();
  s.name = "grid_sample_grad_x";
  s.doc = "gradient of grid_sample towards x; operands dy, grid";
  s.cut = grid_sample_grad_x_cut;
  s.localise = localise_shape;
  s.attrs.push_back({"shape", "ints", "extents of x"});
  s.infer = [](const ir::NodeView& n) {
    return std::vector<TensorType>{{n.in[0].dtype, Shape::of(n.attrs.get_ints("shape"))}};
  };
  s.grad = {};
  s.why_no_grad = kSecond;
  s.onnx = "";
  return s;
}

ir::OpSchema grid_sample_grad_grid() {
  ir::OpSchema s = grid_sample();
  s.name = "grid_sample_grad_grid";
  s.doc = "gradient of grid_sample towards the grid; operands dy, x, grid";
  s.cut = grid_sample_grad_grid_cut;
  s.min_in = s.max_in = 3;
  s.infer = [](const ir::NodeView& n) { return std::vector{n.in[2]}; };
  s.grad = {};
  s.why_no_grad = kSecond;
  s.onnx = "";
  return s;
}

}  // namespace

std::vector<ir::OpDef> images_ops() {
  return {{resize(), resize_cpu_kernels()},
          {upsample(), upsample_cpu_kernels()},
          {grid_sample(), grid_sample_cpu_kernels()},
          {affine_grid(), affine_grid_cpu_kernels()},
          {resize_grad(), resize_grad_cpu_kernels()},
          {grid_sample_grad_x(), grid_sample_grad_x_cpu_kernels()},
          {grid_sample_grad_grid(), grid_sample_grad_grid_cpu_kernels()}};
}

}  // namespace trireme::ops
