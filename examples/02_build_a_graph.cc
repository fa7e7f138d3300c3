// Builds a two-layer network in C++, prints it, and runs it at several batch sizes, with one program for each
// size.
#include <cstdio>
#include <memory>
#include <vector>

#include "engine/session/session.h"
#include "ops/table.h"

using trireme::ir::Graph;
using trireme::ir::ValueId;
using trireme::tensor::Dim;
using trireme::tensor::DType;
using trireme::tensor::Shape;
using trireme::tensor::Tensor;

namespace {

/// A weight [rows, columns] whose element (r, c) is `scale` where r == c, else 0.
Tensor scaled_identity(int64_t rows, int64_t columns, float scale) {
  Tensor t = Tensor::zeros(DType::f32, {rows, columns});
  for (int64_t i = 0; i < std::min(rows, columns); ++i) t.mutable_data<float>()[i * columns + i] = scale;
  return t;
}

/// x [batch, 4] -> hidden = relu(x w1 + b1) [batch, 3] -> softmax(hidden) [batch, 3].
Graph small_network() {
  const trireme::ir::OpTable& ops = trireme::ops::table();
  Graph graph;
  graph.name = "small";
  const ValueId x = graph.add_input("x", {DType::f32, Shape{Dim::symbol("batch"), 4}});
  const ValueId w1 = graph.add_param("w1", scaled_identity(4, 3, 2.0f));  // [in, out]
  const ValueId b1 = graph.add_param("b1", Tensor::from<float>({3}, {0.0f, 0.5f, -1.0f}));
  // add1 infers the result's type: shapes that do not fit throw here, not when the graph runs.
  const ValueId product = graph.add1(ops.need("linear"), {x, w1, b1}, {}, "first layer");
  const ValueId hidden = graph.add1(ops.need("relu"), {product}, {}, "first layer");
  const ValueId y = graph.add1(ops.need("softmax"), {hidden}, {{"axis", int64_t{-1}}}, "probabilities");
  graph.add_output(y, "y");
  trireme::ir::verify(graph);
  return graph;
}

}  // namespace

int main() try {
  using trireme::engine::PreparedModel;
  using trireme::engine::Session;

  const Graph graph = small_network();
  std::printf("as built:\n%s\n", trireme::ir::print(graph).c_str());
  const auto model = std::make_shared<const PreparedModel>(graph);

  Session session(model, {.threads = 1});
  for (const int64_t batch : {1, 2, 8}) {
    // `batch` is symbolic, so each size gets a program of its own (a bucket). Programs share the weights.
    const trireme::compile::Program& program = session.prepare({{batch, 4}});
    if (batch == 1) std::printf("as it runs:\n%s\n", trireme::compile::print_steps(program).c_str());
    Tensor x = Tensor::zeros(DType::f32, {batch, 4});
    for (int64_t i = 0; i < x.elements(); ++i) x.mutable_data<float>()[i] = static_cast<float>(i % 4) * 0.5f;
    const Tensor y = session.run({x})[0];
    const std::span<const float> p = y.data<float>();
    std::printf("batch %lld: %zu steps, %lld scratch bytes, y %s, first row %.4f %.4f %.4f\n",
                static_cast<long long>(batch), program.steps.size(),
                static_cast<long long>(program.memory.arena_bytes),
                trireme::tensor::to_string(y.dims()).c_str(), p[0], p[1], p[2]);
  }
  return 0;
} catch (const trireme::base::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
