// Graphs whose programs meet other ranks, for tests.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compile/program.h"
#include "ops/table.h"

namespace trireme::runtime {

using tensor::DType;

inline size_t steps_aside(const compile::Program& p) {
  return static_cast<size_t>(
      std::count_if(p.steps.begin(), p.steps.end(), [](const compile::Step& s) { return s.is_aside; }));
}

/// A random graph of [8, 8] values: arithmetic, reductions over the ranks one by one and in buckets, gathers
/// that are scattered again, a state that is gathered into.
class RandomGraph {
 public:
  RandomGraph(uint64_t seed, int ranks, int rank) : rng_(seed), ranks_(ranks), rank_(rank) {
    state_ = graph.add_state("s", {DType::f32, {8 * ranks, 8}});
    values_.push_back(graph.add_input("x", {DType::f32, {8, 8}}));
    for (int i = 0; i < 40; ++i) add();
    const ir::ValueId gathered = op("gather_into", {state_, pick()}, cut())[0];
    graph.add_output(op("relu", {gathered}, {})[0], "state");
    for (size_t i = 0; i < 4; ++i)
      graph.add_output(op("tanh", {values_[values_.size() - 1 - i]}, {})[0], "y" + std::to_string(i));
    graph.sort();
  }

  ir::Graph graph;

 private:
  ir::ValueId pick() { return values_[rng_.below(values_.size())]; }
  ir::Attrs group() const {
    return {{"axes", std::string("dp")},
            {"parts", std::vector<int64_t>{ranks_}},
            {"index", std::vector<int64_t>{rank_}}};
  }
  ir::Attrs cut() const { return group().set("dim", int64_t{0}); }
  std::vector<ir::ValueId> op(const char* name, std::vector<ir::ValueId> in, ir::Attrs attrs,
                              size_t results = 1) {
    return graph.add(ops::table().need(name), std::move(in), std::move(attrs), results, name);
  }
  void add() {
    switch (rng_.below(8)) {
      case 0: return push(op("all_reduce", {pick()}, group()));
      case 1: return push(op("all_reduce", {pick(), pick(), pick()}, group(), 3));
      case 2: {
        const ir::ValueId whole = op("all_gather", {pick()}, cut())[0];
        const ir::ValueId changed = rng_.below(2) == 0 ? whole : op("sin", {whole}, {})[0];
        return push(op("reduce_scatter", {changed}, cut()));
      }
      case 3: return push(op("matmul", {pick(), pick()}, {}));
      case 4: return push(op("add", {pick(), pick()}, {}));
      case 5: return push(op("mul", {pick(), pick()}, {}));
      case 6: return push(op("sigmoid", {pick()}, {}));
      default: return push(op("sin", {pick()}, {}));
    }
  }
  void push(const std::vector<ir::ValueId>& made) {
    // Values stay within bounds, so that sums do not overflow.
    for (const ir::ValueId id : made) values_.push_back(op("tanh", {id}, {})[0]);
  }

  base::Rng rng_;
  int64_t ranks_, rank_;
  ir::ValueId state_;
  std::vector<ir::ValueId> values_;
};

/// Layers whose gradients are reduced while the next one's are computed.
inline ir::Graph backward(int layers, int64_t n, int64_t ranks = 2) {
  ir::Graph g;
  const auto op = [&](const char* name, std::vector<ir::ValueId> in, ir::Attrs attrs = {}) {
    return g.add1(ops::table().need(name), std::move(in), std::move(attrs), name);
  };
  ir::ValueId x = g.add_input("x", {DType::f32, {n, n}});
  std::vector<ir::ValueId> reduced;
  const ir::Attrs group{{"axes", std::string("dp")}, {"parts", std::vector<int64_t>{ranks}}};
  for (int i = 0; i < layers; ++i) {
    x = op("tanh", {op("matmul", {x, x})});
    reduced.push_back(op("all_reduce", {op("matmul", {x, x})}, group));
  }
  for (size_t i = 0; i < reduced.size(); ++i) g.add_output(op("neg", {reduced[i]}), "g" + std::to_string(i));
  g.sort();
  return g;
}

}  // namespace trireme::runtime
