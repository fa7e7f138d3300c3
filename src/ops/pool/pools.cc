// Pooling in ONNX layout [n, c, spatial...]: max, average and Lp windows, and the same over whole planes.
#include "ops/pool/pool_cuts.h"
#include "ops/conv/window.h"
#include "ops/pool/pool_grad.h"
#include "ops/pool/pool_kernels.h"
#include "ops/pool/pools_expand.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

std::vector<TensorType> infer_pool(const ir::NodeView& n) {
  const Shape& x = n.in[0].shape;
  Shape y = Shape::unknown_rank();
  if (x.has_rank()) {
    base::require(x.rank() >= 3, "pooling of ", x.to_string(), ", which has no spatial axis");
    base::require(n.attrs.has("kernel_shape"), "pooling needs kernel_shape");
    const std::vector<Dim> spatial(x.dims().begin() + 2, x.dims().end());
    std::vector<Dim> out{x[0], x[1]};
    for (Dim& d : window_out(n.attrs, {}, spatial)) out.push_back(std::move(d));
    y = Shape(std::move(out));
  }
  return {{n.in[0].dtype, y}, {DType::i64, y}};
}

std::vector<TensorType> infer_global(const ir::NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return {{n.in[0].dtype, x}};
  base::require(x.rank() >= 2, "global pooling of ", x.to_string());
  std::vector<Dim> out(x.rank(), Dim(1));
  out[0] = x[0];
  out[1] = x[1];
  return {{n.in[0].dtype, Shape(std::move(out))}};
}

ir::Cost pool_cost(const ir::NodeView& n) {
  ir::Cost cost;
  cost.bytes = static_cast<double>(tensor::bytes_of(n.in[0]) + tensor::bytes_of(n.out[0]));
  cost.flop = static_cast<double>(n.out[0].shape.elements().value_or(0));
  for (int64_t k : n.attrs.get_ints("kernel_shape")) cost.flop *= static_cast<double>(k);
  return cost;
}

ir::Cost global_cost(const ir::NodeView& n) {
  return {.flop = static_cast<double>(n.in[0].shape.elements().value_or(0)),
          .bytes = static_cast<double>(tensor::bytes_of(n.in[0]) + tensor::bytes_of(n.out[0]))};
}

std::vector<ir::AttrSpec> with(std::vector<ir::AttrSpec> attrs, std::vector<ir::AttrSpec> more) {
  attrs.push_back({"ceil_mode", "int", "a last window that starts inside the padded input counts"});
  attrs.insert(attrs.end(), more.begin(), more.end());
  return attrs;
}

ir::OpSchema windowed(std::string name, std::string doc, std::string onnx, std::vector<ir::AttrSpec> more,
                      PoolRule grad) {
  return {.name = std::move(name),
          .doc = std::move(doc),
          .cut = pool_cut,
          .attrs = with(window_attrs(), std::move(more)),
          .infer = infer_pool,
          .cost = pool_cost,
          .grad = rule(grad),
          .onnx = std::move(onnx)};
}

ir::OpSchema global(std::string name, std::string doc, std::string onnx, PoolRule grad) {
  return {.name = std::move(name),
          .doc = std::move(doc),
          .cut = pool_cut,
          .infer = infer_global,
          .cost = global_cost,
          .grad = rule(grad),
          .onnx = std::move(onnx)};
}

std::vector<TensorType> infer_unpool(const ir::NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return {n.in[0]};
  const std::vector<int64_t> kernel = n.attrs.get_ints("kernel_shape"), strides = n.attrs.get_ints("strides"),
                             pads = n.attrs.get_ints("pads");
  const size_t rank = x.rank() - 2;
  base::require(x.rank() >= 3 && kernel.size() == rank && (strides.empty() || strides.size() == rank) &&
                    (pads.empty() || pads.size() == 2 * rank),
                "max_unpool attributes do not fit ", x.to_string());
  constexpr int64_t kMost = 1 << 24;
  for (const auto* list : {&kernel, &strides, &pads}) {
    for (int64_t v : *list) base::require(v >= 0 && v < kMost, "max_unpool has ", v, " among its attributes");
  }
  for (size_t i = 2; i < x.rank(); ++i)
    base::require(!x[i].is_static() || x[i].value() < (int64_t{1} << 32), "max_unpool of ", x.to_string());
  if (n.present(2)) {
    const tensor::Tensor* size = n.value(2);
    if (size == nullptr) return {{n.in[0].dtype, Shape::unknown(x.rank())}};
    base::require(size->elements() == static_cast<int64_t>(x.rank()), "max_unpool of ", x.to_string(), " to ",
                  size->elements(), " extents");
    return {{n.in[0].dtype, Shape::of(size->to_ints())}};
  }
  std::vector<Dim> out{x[0], x[1]};
  for (size_t i = 0; i < rank; ++i) {
    const int64_t pad = pads.empty() ? 0 : pads[i] + pads[rank + i],
                  stride = strides.empty() ? 1 : strides[i];
    out.push_back(x[i + 2].is_static() ? Dim((x[i + 2].value() - 1) * stride + kernel[i] - pad)
                                       : Dim::unknown());
  }
  return {{n.in[0].dtype, Shape(std::move(out))}};
}

ir::OpSchema max_unpool() {
  return {.name = "max_unpool",
          .doc = "zeros with x[i] at position indices[i] of the result; the inverse walk of max_pool",
          .why_no_cut = "its indices count in the whole tensor",
          .min_in = 2,
          .max_in = 3,
          .attrs = {{"kernel_shape", "ints", "window of the max_pool that is undone"},
                    {"strides", "ints", "its strides, default 1"},
                    {"pads", "ints", "its padding, default 0"}},
          .infer = infer_unpool,
          .expand = expand_max_unpool,
          .grad = rule(max_unpool_gradients),
          .onnx = "MaxUnpool"};
}

/// The shape of pooled regions, which are rows of `coordinates` numbers.
std::vector<TensorType> infer_roi(const ir::NodeView& n, int64_t coordinates, int64_t height, int64_t width) {
  const Shape &x = n.in[0].shape, &rois = n.in[1].shape;
  if (!x.has_rank() || !rois.has_rank()) return {{n.in[0].dtype, Shape::unknown(4)}};
  base::require(x.rank() == 4 && rois.rank() == 2, "region pooling of ", x.to_string(), " with regions ",
                rois.to_string());
  base::require(!rois[1].is_static() || rois[1].value() == coordinates, "region pooling by regions ",
                rois.to_string(), ", which needs ", coordinates, " numbers each");
  base::require(height >= 1 && width >= 1, "region pooling to ", height, " x ", width);
  if (x.is_static() && !(rois[0].is_static() && rois[0].value() == 0)) {
    base::require(x[0].value() > 0 && x[2].value() > 0 && x[3].value() > 0, "region pooling of ",
                  x.to_string(), ", which has no image");
  }
  return {{n.in[0].dtype, Shape{rois[0], x[1], Dim(height), Dim(width)}}};
}

ir::OpSchema max_roi_pool() {
  return {.name = "max_roi_pool",
          .doc = "maximum over each of the cells of every region [image, x1, y1, x2, y2]",
          .cut = roi_cut,
          .min_in = 2,
          .max_in = 2,
          .attrs = {{"pooled_shape", "ints", "cells per region: height, width"},
                    {"spatial_scale", "float", "factor from region to feature coordinates, default 1"}},
          .infer =
              [](const ir::NodeView& n) {
                const std::vector<int64_t> cells = n.attrs.get_ints("pooled_shape");
                base::require(cells.size() == 2, "max_roi_pool needs pooled_shape of two entries");
                return infer_roi(n, 5, cells[0], cells[1]);
              },
          .why_no_grad = "regions rounded to whole pixels: train with roi_align, which replaced it",
          .onnx = "MaxRoiPool"};
}

ir::OpSchema roi_align() {
  return {.name = "roi_align",
          .doc = "bilinear samples of every region [x1, y1, x2, y2], averaged or maximised per cell",
          .cut = roi_cut,
          .min_in = 3,
          .max_in = 3,
          .attrs = {{"coordinate_transformation_mode", "string", "half_pixel or output_half_pixel"},
                    {"mode", "string", "avg or max"},
                    {"output_height", "int", "cells, default 1"},
                    {"output_width", "int", "cells, default 1"},
                    {"sampling_ratio", "int", "samples per cell and axis; 0 = ceil of the cell's extent"},
                    {"spatial_scale", "float", "factor from region to feature coordinates, default 1"}},
          .infer =
              [](const ir::NodeView& n) {
                const Shape &rois = n.in[1].shape, &images = n.in[2].shape;
                base::require(!images.is_static() || !rois.is_static() || images == Shape{rois[0]},
                              "roi_align of regions ", rois.to_string(), " with image numbers ",
                              images.to_string());
                return infer_roi(n, 4, n.attrs.get_int("output_height", 1),
                                 n.attrs.get_int("output_width", 1));
              },
          .grad = rule(roi_align_gradients),
          .onnx = "RoiAlign"};
}

}  // namespace

std::vector<ir::OpDef> pools_ops() {
  ir::OpSchema max =
      windowed("max_pool", "maximum over each window; optional second result: index of the maximum",
               "MaxPool", {{"storage_order", "int", "1: indices count down columns"}}, max_pool_gradients);
  max.max_out = 2;
  max.moves = 0b1;
  ir::OpSchema global_lp =
      global("global_lp_pool", "p-norm over all spatial axes", "GlobalLpPool", global_lp_pool_gradients);
  global_lp.expand = expand_global_lp_pool;
  ir::OpSchema mean =
      windowed("average_pool", "mean over each window", "AveragePool",
               {{"count_include_pad", "int", "padding counts as zeros in the mean"}}, average_pool_gradients);
  mean.precision = kSumsMany;
  ir::OpSchema global_mean = global("global_average_pool", "mean over all spatial axes", "GlobalAveragePool",
                                    global_average_pool_gradients);
  global_mean.precision = kSumsMany;
  ir::OpSchema global_max =
      global("global_max_pool", "maximum over all spatial axes", "GlobalMaxPool", global_max_pool_gradients);
  global_max.moves = 0b1;
  return {
      {std::move(max), max_pool_cpu_kernels()},
      {std::move(mean), average_pool_cpu_kernels()},
      {windowed("lp_pool", "p-norm of each window", "LpPool", {{"p", "int", "order of the norm, default 2"}},
                lp_pool_gradients),
       lp_pool_cpu_kernels()},
      {std::move(global_mean), global_average_pool_cpu_kernels()},
      {std::move(global_max), global_max_pool_cpu_kernels()},
      {std::move(global_lp), global_lp_pool_cpu_kernels()},
      {max_unpool(), max_unpool_cpu_kernels()},
      {max_roi_pool(), max_roi_pool_cpu_kernels()},
      {roi_align(), roi_align_cpu_kernels()},
      {max_pool_grad(), max_pool_grad_cpu_kernels()},
      {average_pool_grad(), average_pool_grad_cpu_kernels()},
      {roi_align_grad(), roi_align_grad_cpu_kernels()},
  };
}

}  // namespace trireme::ops
