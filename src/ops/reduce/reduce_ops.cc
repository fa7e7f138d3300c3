// reduce_*, arg_max, arg_min, cum_sum, cum_prod: schemas.
#include "ops/reduce/reduce.h"
#include "ops/table.h"

#include "ops/shape/shape_rules.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::Dim;
using tensor::Shape;
using Types = std::vector<tensor::TensorType>;

struct ReductionRow {
  const char* name;
  const char* onnx;
  const char* doc;
  Reduction reduction;
  double flop;  // per element of the operand
  bool takes_boolean;
  ir::PrecisionRule precision = kSumsMany;
};

constexpr ReductionRow kReductions[] = {
    {"reduce_sum", "ReduceSum", "y = sum of x over the axes", Reduction::sum, 1, false},
    {"reduce_mean", "ReduceMean", "y = mean of x over the axes", Reduction::mean, 1, false},
    {"reduce_max", "ReduceMax", "y = largest x over the axes, NaN if any is", Reduction::max, 1, true,
     kUnknown},
    {"reduce_min", "ReduceMin", "y = smallest x over the axes, NaN if any is", Reduction::min, 1, true,
     kUnknown},
    {"reduce_prod", "ReduceProd", "y = product of x over the axes", Reduction::prod, 1, false},
    {"reduce_l1", "ReduceL1", "y = sum of |x| over the axes", Reduction::l1, 2, false},
    {"reduce_l2", "ReduceL2", "y = sqrt(sum of x^2) over the axes", Reduction::l2, 2, false},
    {"reduce_log_sum", "ReduceLogSum", "y = ln(sum of x) over the axes", Reduction::log_sum, 1, false},
    {"reduce_log_sum_exp", "ReduceLogSumExp", "y = ln(sum of e^x) over the axes", Reduction::log_sum_exp, 18,
     false},
    {"reduce_sum_square", "ReduceSumSquare", "y = sum of x^2 over the axes", Reduction::sum_square, 2, false},
};

Types infer_reduce(const NodeView& n, bool takes_boolean) {
  const tensor::DType t = n.in[0].dtype;
  base::require(tensor::bits_of(t) >= 8 && (takes_boolean || t != tensor::DType::boolean), "no reduction of ",
                name_of(t));
  const Shape& x = n.in[0].shape;
  const bool keeps = n.attrs.get_int("keepdims", 1) != 0;
  if (!x.has_rank()) return like(n.in[0], Shape::unknown_rank());
  if (n.present(1) && n.value(1) == nullptr) {
    const auto count = length_of(n, 1);
    if (keeps) return like(n.in[0], Shape::unknown(x.rank()));
    if (!count || *count == 0) return like(n.in[0], Shape::unknown_rank());
    return like(n.in[0], Shape::unknown(x.rank() - std::min(x.rank(), static_cast<size_t>(*count))));
  }
  const std::vector<bool> reduced = reduced_axes(n);
  DimList out;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (!reduced[d])
      out.push_back(x[d]);
    else if (keeps)
      out.push_back(1);
  }
  return like(n.in[0], Shape(std::move(out)));
}

Types infer_arg(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return {{tensor::DType::i64, Shape::unknown_rank()}};
  DimList out = x.dims();
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.rank());
  base::require(!x[axis].is_static() || x[axis].value() > 0, "arg_max and arg_min need at least one element");
  if (n.attrs.get_int("keepdims", 1) != 0)
    out[axis] = 1;
  else
    out.erase(out.begin() + static_cast<int64_t>(axis));
  return {{tensor::DType::i64, Shape(std::move(out))}};
}

ir::OpSchema arg_schema(std::string name, std::string onnx, std::string doc) {
  return {.name = std::move(name),
          .doc = std::move(doc),
          .cut = arg_cut,
          .attrs = {{"axis", "int", "default 0"},
                    {"keepdims", "int", "default 1"},
                    {"select_last_index", "int", "1: the last of equal elements, default the first"}},
          .infer = infer_arg,
          .why_no_grad = "integer result",
          .onnx = std::move(onnx)};
}

ir::OpSchema scan_schema(std::string name, std::string onnx, std::string doc) {
  return {
      .name = std::move(name),
      .doc = std::move(doc),
      .precision = kSumsMany,
      .min_in = 2,
      .max_in = 2,
      .attrs = {{"exclusive", "int", "1: without the element itself"}, {"reverse", "int", "1: from the end"}},
      .infer = [](const NodeView& n) { return like(n.in[0], n.in[0].shape); },
      .onnx = std::move(onnx)};
}

}  // namespace

std::vector<bool> reduced_axes(const NodeView& node) {
  const size_t rank = node.in[0].shape.rank();
  const std::vector<int64_t> axes = known_ints(node, 1).value_or(node.attrs.get_ints("axes"));
  if (axes.empty()) return std::vector<bool>(rank, node.attrs.get_int("noop_with_empty_axes", 0) == 0);
  std::vector<bool> reduced(rank, false);
  for (int64_t a : axes) reduced[ir::normal_axis(a, rank)] = true;
  return reduced;
}

std::vector<ir::OpDef> reduce_ops() {
  std::vector<ir::OpDef> ops;
  for (const ReductionRow& row : kReductions) {
    ir::OpSchema s{
        .name = row.name,
        .doc = row.doc,
        .precision = row.precision,
        .max_in = 2,
        .attrs = {{"keepdims", "int", "default 1"},
                  {"noop_with_empty_axes", "int", "1: without axes nothing is reduced, default: everything"}},
        .onnx = row.onnx};
    s.infer = [takes = row.takes_boolean](const NodeView& n) { return infer_reduce(n, takes); };
    s.cost = [flop = row.flop](const NodeView& n) {
      return ir::Cost{flop * static_cast<double>(n.in[0].shape.elements().value_or(0)),
                      static_cast<double>(tensor::bytes_of(n.in[0]) + tensor::bytes_of(n.out[0]))};
    };
    if (row.reduction == Reduction::log_sum_exp) s.expand = expand_log_sum_exp;
    s.grad = reduce_grad(row.reduction);
    s.cut = reduce_cut(row.reduction);
    ops.push_back({std::move(s), reduce_cpu_kernels(row.reduction)});
  }
  ops.push_back(
      {arg_schema("arg_max", "ArgMax", "index of the largest element along axis"), arg_cpu_kernels(true)});
  ops.push_back(
      {arg_schema("arg_min", "ArgMin", "index of the smallest element along axis"), arg_cpu_kernels(false)});
  ops.push_back(
      {scan_schema("cum_sum", "CumSum", "running sums along the axis operand"), scan_cpu_kernels(false)});
  ops.back().schema.grad = rule(cum_sum_rule);
  ops.back().schema.cut = scan_cut(1, {0b1});
  ops.push_back({scan_schema("cum_prod", "CumProd", "running products along the axis operand"),
                 scan_cpu_kernels(true)});
  ops.back().schema.grad = rule(cum_prod_rule);
  ops.back().schema.cut = scan_cut(1, {});
  ir::OpSchema back = scan_schema("cum_prod_grad", "", "gradient of cum_prod; operands dy, x, axis");
  back.precision = {};
  back.min_in = back.max_in = 3;
  back.cut = scan_cut(2, {0b1});
  back.why_no_grad = "a backward op: second derivatives are not taken";
  ops.push_back({std::move(back), cum_prod_grad_cpu_kernels()});
  return ops;
}

}  // namespace trireme::ops
