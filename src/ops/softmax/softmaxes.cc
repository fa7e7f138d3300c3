// softmax, log_softmax, hardmax along one axis: types and cost.
#include "ops/cut.h"
#include "ops/grad.h"
#include "ops/softmax/softmax_kernels.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

/// Cuts all dimensions but the normalised one. `linear`: masks of operands in which the op is linear.
ir::CutFn other_axes_cut(std::vector<uint32_t> linear) {
  return [linear](const ir::NodeView& n) {
    std::string x = cut_letters(n.in[0].shape.rank()), behind;
    if (!x.empty()) {
      const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), x.size());
      x[axis] = '.';
      behind = x.substr(axis + 1);  // with fewer elements there, sums are added in another order
    }
    return ir::CutRule{.notation = n.in.size() == 2 ? x + "," + x + "->" + x : x + "->" + x,
                       .own = behind,
                       .linear = linear,
                       .uneven = x};
  };
}

ir::OpSchema along_axis(std::string name, std::string doc, std::string onnx) {
  return {.name = std::move(name),
          .doc = std::move(doc),
          .cut = other_axes_cut({}),
          .attrs = {{"axis", "int", "the axis that is normalised, default -1"}},
          .infer =
              [](const ir::NodeView& n) {
                const tensor::Shape& x = n.in[0].shape;
                if (x.has_rank() && x.rank() > 0) ir::normal_axis(n.attrs.get_int("axis", -1), x.rank());
                return std::vector{n.in[0]};
              },
          .cost =
              [](const ir::NodeView& n) {
                // Maximum, subtraction, exponential (14 flop), sum, division.
                return ir::Cost{.flop = 18.0 * static_cast<double>(n.out[0].shape.elements().value_or(0)),
                                .bytes = 2.0 * static_cast<double>(tensor::bytes_of(n.out[0]))};
              },
          .onnx = std::move(onnx)};
}

ir::OpSchema backward(std::string name, std::string doc, double flop) {
  ir::OpSchema s = along_axis(std::move(name), std::move(doc), "");
  s.min_in = s.max_in = 2;
  s.half_rows = {.operands = 0b11};
  s.cut = other_axes_cut({0b1});
  s.why_no_grad = "a backward op: second derivatives are not taken";
  s.cost = [flop](const ir::NodeView& n) {
    return ir::Cost{.flop = flop * static_cast<double>(n.out[0].shape.elements().value_or(0)),
                    .bytes = 3.0 * static_cast<double>(tensor::bytes_of(n.out[0]))};
  };
  return s;
}

/// Expands to the one-hot code of the first maximum.
std::vector<ValueId> expand_hardmax(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  GradBuilder g(graph, node, {});
  const tensor::Dims dims = g.dims(g.in(0));
  if (dims.empty()) return {g.plus(g.zeros_like(g.in(0)), 1)};
  const int64_t axis = g.attrs().get_int("axis", -1);
  const ir::Attrs drop{{"axis", axis}, {"keepdims", int64_t{0}}};
  const ValueId values =
      g.op("concat", {g.reshape(g.scalar(0, g.in(0)), {1}), g.reshape(g.scalar(1, g.in(0)), {1})},
           {{"axis", int64_t{0}}});
  const int64_t classes = dims[ir::normal_axis(axis, dims.size())];
  return {g.op("one_hot", {g.op("arg_max", {g.in(0)}, drop), g.ints({classes}), values}, {{"axis", axis}})};
}

/// The expansion for element types without a device kernel.
ir::ExpandFn expand_softmax(bool is_log) {
  return [is_log](ir::Graph& graph, const ir::Node& given) -> std::vector<ValueId> {
    const ir::Node node = given;
    GradBuilder g(graph, node, {});
    const ValueId x = g.in(0);
    if (g.dims(x).empty()) return {is_log ? g.zeros_like(x) : g.plus(g.zeros_like(x), 1)};
    const std::vector<int64_t> axis{g.attrs().get_int("axis", -1)};
    const ValueId most = g.op("reduce_max", {x, g.ints(axis)}, {{"keepdims", int64_t{1}}});
    const ValueId below = g.sub(x, most), e = g.op("exp", {below});
    const ValueId sum = g.reduce_sum(e, axis, true);
    return {is_log ? g.sub(below, g.op("log", {sum})) : g.div(e, sum)};
  };
}

}  // namespace

std::vector<ir::OpDef> softmaxes_ops() {
  ir::OpSchema hard = along_axis("hardmax", "1 at the first maximum along the axis, 0 elsewhere", "Hardmax");
  hard.expand = expand_hardmax;
  hard.why_no_grad = "piecewise constant: its derivative is 0 wherever it exists";
  ir::OpSchema soft =
      along_axis("softmax", "y = exp(x - max x) / sum exp(x - max x) along the axis", "Softmax");
  soft.precision = kStatistics;
  soft.half_rows = {.operands = 0b1};
  soft.expand = expand_softmax(false);
  soft.grad = rule([](GradBuilder& g) -> Gradients {
    return {g.op("softmax_grad", {g.grad(), g.out()}, g.attrs())};
  });
  ir::OpSchema log =
      along_axis("log_softmax", "y = x - max x - log sum exp(x - max x) along the axis", "LogSoftmax");
  log.precision = kStatistics;
  log.half_rows = {.operands = 0b1};
  log.expand = expand_softmax(true);
  log.grad = rule([](GradBuilder& g) -> Gradients {
    return {g.op("log_softmax_grad", {g.grad(), g.out()}, g.attrs())};
  });
  return {{std::move(soft), softmax_cpu_kernels()},
          {std::move(log), log_softmax_cpu_kernels()},
          {std::move(hard), hardmax_cpu_kernels()},
          {backward("softmax_grad", "dx = y (dy - sum dy y) along the axis; operands dy, y", 5),
           softmax_grad_cpu_kernels(false)},
          {backward("log_softmax_grad", "dx = dy - e^y sum dy along the axis; operands dy, y", 19),
           softmax_grad_cpu_kernels(true)}};
}

}  // namespace trireme::ops
