// gather*, scatter*, compress, non_zero: schemas.
#include "ops/index/index_ops.h"

#include <algorithm>

#include "ops/index/index_cuts.h"
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

void require_index(const NodeView& n, size_t i) {
  base::require(n.in[i].dtype == DType::i64 || n.in[i].dtype == DType::i32,
                "indices must be i32 or i64, not ", name_of(n.in[i].dtype));
}

void append(DimList& out, const Shape& s, size_t from, size_t to) {
  for (size_t d = from; d < to; ++d) out.push_back(s[d]);
}

Types infer_gather(const NodeView& n) {
  require_index(n, 1);
  const Shape &x = n.in[0].shape, &at = n.in[1].shape;
  if (!x.has_rank() || !at.has_rank()) return like(n.in[0], Shape::unknown_rank());
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.rank());
  DimList out;
  append(out, x, 0, axis);
  append(out, at, 0, at.rank());
  append(out, x, axis + 1, x.rank());
  return like(n.in[0], Shape(std::move(out)));
}

Types infer_gather_grad(const NodeView& n) {
  require_index(n, 1);
  const Types out = like(n.in[0], Shape::of(n.attrs.get_ints("shape")));
  base::require(!n.present(2) || n.in[2] == out[0], "gather_grad: base is not like the result");
  return out;
}

Types infer_gather_elements(const NodeView& n) {
  require_index(n, 1);
  const Shape &x = n.in[0].shape, &at = n.in[1].shape;
  if (x.has_rank()) {
    const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.rank());
    base::require(!at.has_rank() || at.rank() == x.rank(), "gather_elements: indices have rank ",
                  at.to_string());
    for (size_t d = 0; at.has_rank() && d < x.rank(); ++d) {
      base::require(d == axis || !x[d].is_static() || !at[d].is_static() || at[d].value() <= x[d].value(),
                    "gather_elements: indices ", at.to_string(), " reach outside ", x.to_string());
    }
  }
  return like(n.in[0], at);
}

Types infer_gather_nd(const NodeView& n) {
  base::require(n.in[1].dtype == DType::i64, "gather_nd: indices must be i64");
  const Shape &x = n.in[0].shape, &at = n.in[1].shape;
  if (!x.has_rank() || !at.has_rank() || at.rank() == 0 || !at[at.rank() - 1].is_static()) {
    return like(n.in[0], Shape::unknown_rank());
  }
  const int64_t batch = n.attrs.get_int("batch_dims", 0), depth = at[at.rank() - 1].value();
  base::require(batch >= 0 && batch < static_cast<int64_t>(std::min(x.rank(), at.rank())) &&
                    batch + depth <= static_cast<int64_t>(x.rank()),
                "gather_nd: batch_dims ", batch, " and index depth ", depth, " do not fit ", x.to_string());
  for (size_t d = 0; d < static_cast<size_t>(batch); ++d) {
    base::require(!x[d].is_static() || !at[d].is_static() || x[d] == at[d], "gather_nd: ", batch,
                  " batch axes of ", x.to_string(), " and of indices ", at.to_string(), " differ");
  }
  DimList out;
  append(out, at, 0, at.rank() - 1);
  append(out, x, static_cast<size_t>(batch + depth), x.rank());
  return like(n.in[0], Shape(std::move(out)));
}

Types infer_scatter_elements(const NodeView& n) {
  require_index(n, 1);
  base::require(n.in[2].dtype == n.in[0].dtype, "scatter_elements: updates have another type than x");
  scatter_mode(n.attrs);
  const Shape &x = n.in[0].shape, &at = n.in[1].shape, &updates = n.in[2].shape;
  if (x.has_rank()) {
    const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.rank());
    base::require(!at.has_rank() || at.rank() == x.rank(), "scatter_elements: indices ", at.to_string());
    for (size_t d = 0; at.has_rank() && d < x.rank(); ++d) {
      base::require(d == axis || !x[d].is_static() || !at[d].is_static() || at[d].value() <= x[d].value(),
                    "scatter_elements: indices ", at.to_string(), " reach outside ", x.to_string());
    }
  }
  const auto a = at.elements(), b = updates.elements();
  base::require(!a || !b || *a == *b, "scatter_elements: ", at.to_string(), " indices for ",
                updates.to_string(), " updates");
  return like(n.in[0], x);
}

Types infer_scatter_nd(const NodeView& n) {
  base::require(n.in[1].dtype == DType::i64, "scatter_nd: indices must be i64");
  base::require(n.in[2].dtype == n.in[0].dtype, "scatter_nd: updates have another type than x");
  scatter_mode(n.attrs);
  const Shape &x = n.in[0].shape, &at = n.in[1].shape, &updates = n.in[2].shape;
  if (!x.is_static() || !at.is_static() || !updates.is_static()) return like(n.in[0], x);
  base::require(at.rank() >= 1 && at[at.rank() - 1].value() <= static_cast<int64_t>(x.rank()),
                "scatter_nd: indices ", at.to_string(), " are deeper than ", x.to_string());
  DimList wanted;
  append(wanted, at, 0, at.rank() - 1);
  append(wanted, x, static_cast<size_t>(at[at.rank() - 1].value()), x.rank());
  base::require(updates == Shape(wanted), "scatter_nd: updates must be ", Shape(wanted).to_string(), ", got ",
                updates.to_string());
  return like(n.in[0], x);
}

Types infer_compress(const NodeView& n) {
  base::require(n.in[1].dtype == DType::boolean, "compress: the condition must be boolean");
  const Shape& x = n.in[0].shape;
  const bool is_known = n.value(1) != nullptr && !tensor::is_absent(*n.value(1));
  const Dim count = is_known ? Dim(kept_count(*n.value(1))) : Dim::unknown();
  const auto limit = [&](const Dim& extent) {
    // Elements past the end of the condition are dropped; entries past the extent must be false, or the
    // result would have elements that nothing fills.
    if (!is_known || !extent.is_static()) return;
    const auto keeps = n.value(1)->data<bool>();
    const auto last = std::find(keeps.rbegin(), keeps.rend(), true);
    base::require(keeps.rend() - last <= extent.value(), "compress: the condition keeps element ",
                  keeps.rend() - last - 1, " of ", extent.value());
  };
  if (!n.attrs.has("axis")) {
    if (const auto all = x.elements()) limit(*all);
    return like(n.in[0], {count});
  }
  if (!x.has_rank()) return like(n.in[0], x);
  DimList out = x.dims();
  const size_t axis = ir::normal_axis(n.attrs.need_int("axis"), x.rank());
  limit(out[axis]);
  out[axis] = count;
  return like(n.in[0], Shape(std::move(out)));
}

Types infer_non_zero(const NodeView& n) {
  const bool is_known = n.value(0) != nullptr && !tensor::is_absent(*n.value(0));
  const Dim count = is_known ? Dim(non_zero_count(*n.value(0))) : Dim::unknown();
  const Shape& x = n.in[0].shape;
  return {{DType::i64, {x.has_rank() ? Dim(static_cast<int64_t>(x.rank())) : Dim::unknown(), count}}};
}

ir::OpSchema schema(std::string name, std::string onnx, std::string doc, size_t operands, ir::InferFn infer) {
  ir::OpSchema s{.name = std::move(name), .doc = std::move(doc), .min_in = operands, .max_in = operands};
  s.infer = std::move(infer);
  s.onnx = std::move(onnx);
  // A lookup moves the rows that it finds, not the whole table.
  if (operands == 2) {
    s.cost = [](const NodeView& n) {
      return ir::Cost{0, 2.0 * static_cast<double>(tensor::bytes_of(n.out[0])) +
                             static_cast<double>(tensor::bytes_of(n.in[1]))};
    };
  }
  return s;
}

}  // namespace

ScatterMode scatter_mode(const ir::Attrs& attrs) {
  const std::string name = attrs.get_string("reduction", "none");
  if (name == "none") return ScatterMode::none;
  if (name == "add") return ScatterMode::add;
  if (name == "mul") return ScatterMode::mul;
  if (name == "max") return ScatterMode::max;
  if (name == "min") return ScatterMode::min;
  base::fail_invalid("scatter: unknown reduction '", name, "'");
}

int64_t kept_count(const tensor::Tensor& condition) {
  const auto flags = condition.data<bool>();
  return std::count(flags.begin(), flags.end(), true);
}

int64_t non_zero_count(const tensor::Tensor& x) {
  return tensor::visit_dtype(x.dtype(), [&](auto zero) {
    int64_t count = 0;
    for (auto v : x.data<decltype(zero)>()) count += static_cast<double>(v) != 0 ? 1 : 0;
    return count;
  });
}

std::vector<ir::OpDef> index_ops() {
  const std::vector<ir::AttrSpec> axis{{"axis", "int", "default 0"}};
  const std::vector<ir::AttrSpec> axis_mode{{"axis", "int", "default 0"},
                                            {"reduction", "string", "none (default), add, mul, max, min"}};
  const ir::AttrSpec padding{"padding_idx", "int", "an index whose slice gets no gradient"};
  std::vector<ir::OpDef> ops;
  ops.push_back({schema("gather", "Gather", "y = slices of x along axis at the indices", 2, infer_gather),
                 gather_cpu_kernels()});
  ops.back().schema.moves = 0b1;
  const ir::AttrSpec first{"first", "int",
                           "the row of the whole axis that the first row at hand is, default 0"};
  const ir::AttrSpec extent{"extent", "int", "rows of the whole axis; rows that are not at hand are zero"};
  ops.back().schema.attrs = {axis[0], padding, first, extent};
  ops.back().schema.cut = gather_cut;
  ops.back().schema.localise = localise_gather;
  ops.back().schema.grad = rule(gather_rule);
  ops.push_back({schema("gather_grad", "", "sums of the slices of dy by index: the gradient of an embedding",
                        2, infer_gather_grad),
                 gather_grad_cpu_kernels()});
  ops.back().schema.max_in = 3;
  ops.back().schema.attrs = {
      axis[0], {"shape", "ints", "extents of the gathered tensor"}, padding, first, extent};
  ops.back().schema.cut = gather_grad_cut;
  ops.back().schema.localise = localise_gather_grad;
  ops.back().schema.why_no_grad = "a backward op: second derivatives are not taken";
  ops.back().schema.cost = [](const NodeView& n) {
    const double dy = static_cast<double>(n.in[0].shape.elements().value_or(0));
    return ir::Cost{dy, static_cast<double>(tensor::bytes_of(n.in[0]) + tensor::bytes_of(n.in[1]) +
                                            tensor::bytes_of(n.out[0]))};
  };
  ops.push_back({schema("gather_elements", "GatherElements",
                        "y[i] = x with i's axis entry replaced by indices[i]", 2, infer_gather_elements),
                 gather_elements_cpu_kernels()});
  ops.back().schema.moves = 0b1;
  ops.back().schema.attrs = axis;
  ops.back().schema.grad = rule(gather_elements_rule);
  ops.push_back({schema("gather_nd", "GatherND", "y = slices of x at index tuples", 2, infer_gather_nd),
                 gather_nd_cpu_kernels()});
  ops.back().schema.moves = 0b1;
  ops.back().schema.attrs = {{"batch_dims", "int", "default 0"}};
  ops.back().schema.grad = rule(gather_nd_rule);
  ops.push_back({schema("scatter_elements", "ScatterElements",
                        "x with updates joined in at indices along axis", 3, infer_scatter_elements),
                 scatter_elements_cpu_kernels()});
  ops.back().schema.attrs = axis_mode;
  ops.back().schema.grad = rule(scatter_elements_rule);
  // The operator that ScatterElements replaced in opset 11: the same, without a reduction.
  ops.push_back({schema("scatter", "Scatter", "x with updates written at indices along axis", 3,
                        infer_scatter_elements),
                 scatter_elements_cpu_kernels()});
  ops.back().schema.attrs = axis;
  ops.back().schema.grad = rule(scatter_elements_rule);
  ops.push_back(
      {schema("scatter_nd", "ScatterND", "x with slices joined in at index tuples", 3, infer_scatter_nd),
       scatter_nd_cpu_kernels()});
  ops.back().schema.attrs = {axis_mode[1]};
  ops.back().schema.grad = rule(scatter_nd_rule);
  ops.push_back({schema("compress", "Compress", "the slices of x along axis whose condition is true", 2,
                        infer_compress),
                 compress_cpu_kernels()});
  ops.back().schema.attrs = {{"axis", "int", "absent: x is flattened"}};
  ops.back().schema.grad = rule(compress_rule);
  ops.push_back(
      {schema("non_zero", "NonZero", "indices of the non-zero elements, one column each", 1, infer_non_zero),
       non_zero_cpu_kernels()});
  ops.back().schema.why_no_grad = "integer result";
  const std::vector<std::pair<std::string_view, ir::CutFn>> cuts{{"gather_elements", gather_elements_cut},
                                                                 {"gather_nd", gather_nd_cut},
                                                                 {"scatter_elements", scatter_elements_cut},
                                                                 {"scatter", scatter_elements_cut},
                                                                 {"scatter_nd", scatter_nd_cut}};
  for (ir::OpDef& op : ops) {
    ir::OpSchema& s = op.schema;
    for (const auto& [name, cut] : cuts) {
      if (s.name == name) s.cut = cut;
    }
    if (!s.cut) s.why_no_cut = "how much is kept depends on all elements";
  }
  return ops;
}

}  // namespace trireme::ops
