// softmax, log_softmax, hardmax along one axis: types and cost.
#include "ops/softmax/softmax_kernels.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

ir::OpSchema along_axis(std::string name, std::string doc, std::string onnx) {
  return {.name = std::move(name),
          .doc = std::move(doc),
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

}  // namespace

std::vector<ir::OpDef> softmaxes_ops() {
  ir::OpSchema hard = along_axis("hardmax", "1 at the first maximum along the axis, 0 elsewhere", "Hardmax");
  hard.why_no_grad = "piecewise constant: its derivative is 0 wherever it exists";
  return {{along_axis("softmax", "y = exp(x - max x) / sum exp(x - max x) along the axis", "Softmax"),
           softmax_cpu_kernels()},
          {along_axis("log_softmax", "y = x - max x - log sum exp(x - max x) along the axis", "LogSoftmax"),
           log_softmax_cpu_kernels()},
          {std::move(hard), hardmax_cpu_kernels()}};
}

}  // namespace trireme::ops
