// softmax, log_softmax, hardmax along one axis: types and cost.
#include "ops/cut.h"
#include "ops/grad.h"
#include "ops/softmax/softmax_kernels.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

/// All dimensions but the one that is normalised. `linear`: the gradients are, in dy.
ir::CutFn other_axes_cut(std::vector<uint32_t> linear) {
  return [linear](const ir::NodeView& n) {
    std::string x = cut_letters(n.in[0].shape.rank());
    if (!x.empty()) x[ir::normal_axis(n.attrs.get_int("axis", -1), x.size())] = '.';
    return ir::CutRule{
        .notation = n.in.size() == 2 ? x + "," + x + "->" + x : x + "->" + x, .linear = linear, .uneven = x};
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
  s.cut = other_axes_cut({0b1});
  s.why_no_grad = "a backward op: second derivatives are not taken";
  s.cost = [flop](const ir::NodeView& n) {
    return ir::Cost{.flop = flop * static_cast<double>(n.out[0].shape.elements().value_or(0)),
                    .bytes = 3.0 * static_cast<double>(tensor::bytes_of(n.out[0]))};
  };
  return s;
}

}  // namespace

std::vector<ir::OpDef> softmaxes_ops() {
  ir::OpSchema hard = along_axis("hardmax", "1 at the first maximum along the axis, 0 elsewhere", "Hardmax");
  hard.why_no_grad = "piecewise constant: its derivative is 0 wherever it exists";
  ir::OpSchema soft =
      along_axis("softmax", "y = exp(x - max x) / sum exp(x - max x) along the axis", "Softmax");
  soft.grad = rule([](GradBuilder& g) -> Gradients {
    return {g.op("softmax_grad", {g.grad(), g.out()}, g.attrs())};
  });
  ir::OpSchema log =
      along_axis("log_softmax", "y = x - max x - log sum exp(x - max x) along the axis", "LogSoftmax");
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
