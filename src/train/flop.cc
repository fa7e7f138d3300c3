// Counts work from the ops' schemas, and measures the rate of products with the program's own kernels.
#include "train/flop.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/report/svg_plot.h"
#include "engine/session/session.h"
#include "lower/known_branches.h"
#include "model/builder.h"
#include "passes/lists/lists.h"

namespace trireme::train {
namespace {

/// The best rate of `repeats` products of side x side matrices, in flop/s.
double square_rate(int64_t side, int repeats, int threads, passes::Precision precision) {
  ir::Graph graph;
  const auto weights = tensor::Tensor::zeros(tensor::DType::f32, {side, side});
  model::Builder builder(graph);
  const ir::ValueId x = graph.add_input("x", weights.type());
  const ir::ValueId y = builder.op("matmul", {x, builder.param("w", weights)});
  graph.add_output(y, "y");
  engine::Session session(std::make_shared<const engine::PreparedModel>(std::move(graph)),
                          {.threads = threads, .strategy = {.precision = {.compute = precision}}});
  std::vector<tensor::Tensor> out = session.run({weights});
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    session.run_into({weights}, out);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const auto n = static_cast<double>(side);
  return 2 * n * n * n / best;
}

}  // namespace

double forward_flop(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes) {
  ir::Graph bound = passes::bind_shapes(graph, shapes);
  lower::open_known_branches(bound);
  double flop = 0;
  for (const ir::Node& node : bound.nodes()) {
    // By convention, model flop exclude all other ops (activations, norms, losses).
    if (!ir::has_products(node.op->schema)) continue;
    const auto is_static = [&](ir::ValueId id) {
      return id == ir::kNoValue || bound.type(id).shape.is_static();
    };
    const bool is_counted = std::all_of(node.in.begin(), node.in.end(), is_static) &&
                            std::all_of(node.out.begin(), node.out.end(), is_static);
    if (is_counted) flop += ir::cost_of(node.op->schema, bound.view(node)).flop;
  }
  return flop;
}

double measure_product_rate(int threads, passes::Precision precision) {
  // Large products use many threads; among many small ones, some are not interrupted on a shared machine.
  const double large = square_rate(1024, 6, threads, precision);
  return std::max(large, square_rate(512, 40, threads, precision));
}

std::string mfu_definition(double product_rate, int threads, passes::Precision precision) {
  constexpr std::array<std::string_view, 4> kNames{"f32", "bf16", "f16", "fp8"};
  return base::concat("3 x forward flop of the model / (step time x ",
                      base::format_number(product_rate * 1e-9, 0), " Gflop/s measured for square ",
                      kNames[static_cast<size_t>(precision)], " products on ", threads, " threads)");
}

}  // namespace trireme::train
