// A custom pass that replaces powers of two by products. Prints the graph before and after it, and checks
// that the results agree.
#include <cmath>
#include <cstdio>
#include <memory>

#include "engine/session/session.h"
#include "ops/table.h"
#include "passes/lists/lists.h"
#include "passes/rewriter.h"

using trireme::ir::Graph;
using trireme::ir::Node;
using trireme::tensor::Tensor;

namespace {

/// pow(x, 2) -> mul(x, x), if the exponent is a constant that does not broadcast the result to another shape.
size_t square_by_product(Graph& graph) {
  trireme::passes::Rewriter rw(graph);
  return rw.for_each("pow", [&](trireme::ir::NodeId, const Node& node) {
    if (!rw.is_scalar(node.in[1], 2.0)) return false;
    // A constant of shape [1,1,1] is a scalar too, but would broadcast x to a higher rank.
    if (!(graph.type(node.in[0]) == graph.type(node.out[0]))) return false;
    rw.replace(node.out[0], rw.add("mul", {node.in[0], node.in[0]}, {}, node.from));
    return true;
  });
}

/// y = (x - 3)^2 + x^3; the cube must stay as it is.
constexpr const char* kText = R"(graph "polynomial"
  %0 = input "x" : f32[batch,4]
  %1 = const : f32[]{3}
  %2 = const : f32[]{2}
  %3 = sub(%0, %1)
  %4 = pow(%3, %2)
  %5 = pow(%0, %1)
  %6 = add(%4, %5)
  return %6 "y"
)";

Tensor run(const Graph& graph, const Tensor& x) {
  const auto model = std::make_shared<const trireme::engine::PreparedModel>(graph);
  trireme::engine::Session session(model, {.threads = 1});
  return session.run({x})[0];
}

}  // namespace

int main() try {
  const Graph before = trireme::ir::parse(kText, trireme::ops::table());
  Graph after = before;
  // A list of passes runs as the built-in lists do; `verify` checks all invariants of the graph after each.
  const std::vector<trireme::passes::Pass> list{
      {"square_by_product", "pow(x, 2) -> mul(x, x)", square_by_product}};
  for (const auto& record : trireme::passes::run_passes(list, after, {.verify = true})) {
    std::printf("%s changed %zu place(s), %zu nodes after it\n\n", record.name.c_str(), record.changes,
                record.nodes_after);
  }
  std::printf("before:\n%s\nafter:\n%s\n", trireme::ir::print(before).c_str(),
              trireme::ir::print(after).c_str());

  const Tensor x = Tensor::from<float>({2, 4}, {-2, -1, 0, 1, 2, 3, 4, 5});
  const Tensor a = run(before, x), b = run(after, x);
  double worst = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const auto at = static_cast<size_t>(i);
    worst = std::max(worst, std::abs(double{a.data<float>()[at]} - double{b.data<float>()[at]}));
  }
  std::printf("largest difference between the two: %g\n", worst);
  return worst < 1e-4 ? 0 : 1;
} catch (const trireme::base::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
