// For tests of gradients: comparison of a gradient rule with central differences in double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "ops/grad.h"
#include "ops/test_eval.h"

namespace trireme::ops::testing {

/// One op with f64 operands (integer operands pass through). `constant`: operands given as constants (axes,
/// shapes) rather than as inputs; integer operands of rank <= 1 always are.
struct GradCase {
  std::string op;
  std::vector<Tensor> in;
  ir::Attrs attrs = {};
  size_t results = 1;
  std::set<size_t> constant = {};
  std::set<size_t> skip = {};  ///< operands whose gradient is not asked for
  double step = 1e-5;          ///< of the differences
  double tolerance = 2e-6;     ///< relative to the largest gradient
};

/// Values of all values of a sorted graph, node by node.
inline std::vector<Tensor> run_graph(const ir::Graph& graph, const std::vector<Tensor>& inputs) {
  base::ThreadPool pool(2);
  std::vector<Tensor> values(graph.values().size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = graph.values()[i].data;
  for (size_t i = 0; i < inputs.size(); ++i) values[index(graph.inputs()[i])] = inputs[i];
  for (const ir::Node& node : graph.nodes()) {
    std::vector<Tensor> in;
    for (ir::ValueId id : node.in) in.push_back(id == ir::kNoValue ? Tensor() : values[index(id)]);
    const std::vector<Tensor> out = evaluate(*node.op, node.attrs, in, node.out.size(), pool);
    for (size_t i = 0; i < out.size(); ++i) {
      if (node.out[i] != ir::kNoValue) values[index(node.out[i])] = out[i];
    }
  }
  std::vector<Tensor> results;
  for (ir::ValueId id : graph.outputs()) results.push_back(values[index(id)]);
  return results;
}

/// sum over float results of <result, fixed random weights>, in double.
inline double weighted_sum(const GradCase& c, const std::vector<Tensor>& in) {
  static base::ThreadPool alone(1);  // hundreds of tiny evaluations: a team would only wait for itself
  const std::vector<Tensor> out = evaluate(table().need(c.op), c.attrs, in, c.results, alone);
  double sum = 0;
  for (size_t r = 0; r < out.size(); ++r) {
    if (!tensor::is_float(out[r].dtype())) continue;
    const Tensor w = random_tensor(DType::f64, out[r].dims(), -1, 1, 77 + r);
    const std::vector<double> y = out[r].to_doubles();
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * w.data<double>()[i];
  }
  return sum;
}

/// Compares the op's gradient rule with central differences of weighted_sum for every f64 operand.
inline void expect_gradient(const GradCase& c) {
  SCOPED_TRACE(c.op + " {" + c.attrs.to_string() + "}");
  ir::Graph graph;
  std::vector<ir::ValueId> operands;
  std::vector<Tensor> inputs;
  std::vector<size_t> asked;
  for (size_t i = 0; i < c.in.size(); ++i) {
    const Tensor& t = c.in[i];
    if (!t.defined()) {
      operands.push_back(ir::kNoValue);
    } else if (c.constant.contains(i) || (!tensor::is_float(t.dtype()) && t.rank() <= 1)) {
      operands.push_back(graph.add_constant(t));
    } else {
      operands.push_back(graph.add_input("x" + std::to_string(i), t.type()));
      inputs.push_back(t);
      if (t.dtype() == DType::f64 && !c.skip.contains(i)) asked.push_back(i);
    }
  }
  const std::vector<ir::ValueId> results = graph.add(table().need(c.op), operands, c.attrs, c.results);
  std::vector<char> wanted(graph.values().size(), 0);
  for (size_t i : asked) wanted[index(operands[i])] = 1;
  std::vector<ir::ValueId> grads(graph.values().size(), ir::kNoValue);
  for (size_t r = 0; r < results.size(); ++r) {
    if (!tensor::is_float(graph.type(results[r]).dtype)) continue;
    const tensor::Dims dims = graph.type(results[r]).shape.to_dims();
    const ir::ValueId seed =
        graph.add_constant(random_tensor(graph.type(results[r]).dtype, dims, -1, 1, 77 + r));
    grads.resize(graph.values().size(), ir::kNoValue);
    grads[index(results[r])] = seed;
  }
  backpropagate(graph, 0, wanted, grads);
  std::vector<ir::ValueId> outputs;
  std::vector<std::string> names;
  for (size_t i : asked) {
    ASSERT_NE(grads[index(operands[i])], ir::kNoValue) << "operand " << i << " has no gradient";
    ASSERT_EQ(graph.type(grads[index(operands[i])]), graph.type(operands[i])) << "operand " << i;
    outputs.push_back(grads[index(operands[i])]);
    names.push_back("d" + std::to_string(i));
  }
  graph.set_outputs(outputs, names);
  graph.sort();
  const std::vector<Tensor> got = run_graph(graph, inputs);
  for (size_t a = 0; a < asked.size(); ++a) {
    std::vector<Tensor> in = c.in;
    Tensor moved = c.in[asked[a]].clone();
    in[asked[a]] = moved;
    const auto x = moved.mutable_data<double>();
    std::vector<double> want(x.size());
    double largest = 1e-3;
    for (size_t i = 0; i < x.size(); ++i) {
      const double old = x[i];
      x[i] = old + c.step;
      const double above = weighted_sum(c, in);
      x[i] = old - c.step;
      const double below = weighted_sum(c, in);
      x[i] = old;
      want[i] = (above - below) / (2 * c.step);
      largest = std::max(largest, std::abs(want[i]));
    }
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(got[a].data<double>()[i], want[i], c.tolerance * largest + 1e-9)
          << "operand " << asked[a] << ", element " << i;
    }
  }
}

}  // namespace trireme::ops::testing
