// top_k, unique, non_max_suppression: schemas.
#include "ops/sort/sort_ops.h"

#include "ops/cut.h"
#include "ops/grad.h"
#include "ops/shape/shape_rules.h"
#include "ops/table.h"
#include "tensor/absent.h"

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using Types = std::vector<tensor::TensorType>;

Types infer_top_k(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return {{n.in[0].dtype, x}, {DType::i64, x}};
  DimList out = x.dims();
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), x.rank());
  Dim k = Dim::unknown();
  if (n.value(1) != nullptr) {
    const int64_t wanted = n.value(1)->to_ints().at(0);
    base::require(wanted >= 0 && (!x[axis].is_static() || wanted <= x[axis].value()), "top_k: k = ", wanted,
                  " of ", x[axis].to_string());
    k = wanted;
  }
  out[axis] = k;
  return {{n.in[0].dtype, Shape(out)}, {DType::i64, Shape(out)}};
}

Types infer_unique(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  Dim count = Dim::unknown();
  if (n.value(0) != nullptr && !tensor::is_absent(*n.value(0)))
    count = static_cast<int64_t>(unique_of(*n.value(0), n.attrs).first.size());
  Dim slices = Dim::unknown();
  Shape y{count};
  if (n.attrs.has("axis") && !x.has_rank()) {
    y = x;
  } else if (n.attrs.has("axis")) {
    const size_t axis = ir::normal_axis(n.attrs.need_int("axis"), x.rank());
    slices = x[axis];
    DimList dims = x.dims();
    dims[axis] = count;
    y = Shape(std::move(dims));
  } else if (const auto all = x.elements()) {
    slices = *all;
  }
  return {{n.in[0].dtype, y}, {DType::i64, {count}}, {DType::i64, {slices}}, {DType::i64, {count}}};
}

Types infer_non_max_suppression(const NodeView& n) {
  bool is_known = true;
  for (size_t i = 0; i < n.in.size(); ++i)
    is_known = is_known && (!n.present(i) || (n.value(i) != nullptr && !tensor::is_absent(*n.value(i))));
  if (!is_known) return {{DType::i64, {Dim::unknown(), 3}}};
  return {{DType::i64, {static_cast<int64_t>(selected_boxes(n).size() / 3), 3}}};
}

/// The gradients of the values are added where the values came from.
Gradients top_k_rule(GradBuilder& g) {
  if (g.grad() == ir::kNoValue) return g.none();
  const bool has_indices = g.results() > 1 && g.out(1) != ir::kNoValue;
  const ValueId indices = has_indices ? g.out(1) : g.ops("top_k", {g.in(0), g.in(1)}, g.attrs(), 2)[1];
  const ir::Attrs attrs{{"axis", g.attrs().get_int("axis", -1)}, {"reduction", std::string("add")}};
  return {g.op("scatter_elements", {g.zeros_like(g.in(0)), indices, g.grad()}, attrs), std::nullopt};
}

/// Cuts all dimensions but the sorted one.
ir::CutRule top_k_cut(const NodeView& n) {
  std::string x = cut_letters(n.in[0].shape.rank());
  x[ir::normal_axis(n.attrs.get_int("axis", -1), x.size())] = '.';
  const std::string k(n.in[1].shape.rank(), '.');
  return {.notation = x + "," + k + "->" + x + (n.out.size() > 1 ? "," + x : ""), .uneven = x};
}

}  // namespace

std::vector<ir::OpDef> sort_ops() {
  std::vector<ir::OpDef> ops;
  ops.push_back(
      {{.name = "top_k",
        .doc = "the k largest (or smallest) elements along axis and their indices; equal ones by index",
        .cut = top_k_cut,
        .min_in = 2,
        .max_in = 2,
        .max_out = 2,
        .attrs = {{"axis", "int", "default -1"},
                  {"largest", "int", "default 1"},
                  {"sorted", "int", "default 1"}},
        .infer = infer_top_k,
        .grad = rule(top_k_rule),
        .onnx = "TopK"},
       top_k_cpu_kernels()});
  ops.push_back({{.name = "unique",
                  .doc = "distinct elements (or slices along axis), first occurrences, inverse and counts",
                  .why_no_cut = "how many elements are distinct depends on all of them",
                  .max_out = 4,
                  .attrs = {{"axis", "int", "absent: x is flattened"},
                            {"sorted", "int", "default 1; 0: by occurrence"}},
                  .infer = infer_unique,
                  .why_no_grad = "which elements are equal is not a differentiable choice",
                  .onnx = "Unique"},
                 unique_cpu_kernels()});
  ops.push_back(
      {{.name = "non_max_suppression",
        .doc = "per class, boxes by falling score that overlap no box kept before",
        .why_no_cut = "which boxes stay depends on all of them",
        .min_in = 2,
        .max_in = 5,
        .attrs = {{"center_point_box", "int", "0: corners [y1, x1, y2, x2], 1: [x, y, width, height]"}},
        .infer = infer_non_max_suppression,
        .why_no_grad = "integer result",
        .onnx = "NonMaxSuppression"},
       non_max_suppression_cpu_kernels()});
  return ops;
}

}  // namespace trireme::ops
