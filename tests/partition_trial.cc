// Runs the graphs that the partition pass makes for each rank, every rank on a thread of its own.
#include "tests/partition_trial.h"

#include <gtest/gtest.h>

#include <mutex>

namespace trireme::tests {
namespace {

/// The placements that the type check infers must be those that the pass recorded.
void expect_inferred(const ir::Graph& graph) {
  std::vector<Shard> inferred;
  try {
    inferred = passes::infer_shards(graph);
  } catch (const base::Error& e) {
    ADD_FAILURE() << e.what() << "\n" << ir::print(graph);
  }
  for (size_t i = 0; i < inferred.size(); ++i)
    EXPECT_EQ(inferred[i], graph.values()[i].shard) << "value " << i << "\n" << ir::print(graph);
}

}  // namespace

ir::Graph expect_same(const ir::Graph& whole, Partitioning how, const Feeds& feeds, double tolerance) {
  const Feeds want = run_whole(whole, feeds);
  std::vector<ir::Graph> graphs(static_cast<size_t>(how.mesh.size()));
  std::mutex reports;  // guards GoogleTest's assertions
  for (int rank = 0; rank < how.mesh.size(); ++rank) {
    how.coordinates = how.mesh.coordinates(rank);
    graphs[static_cast<size_t>(rank)] = passes::partition(whole, how);
    ir::verify(graphs[static_cast<size_t>(rank)]);
    expect_inferred(graphs[static_cast<size_t>(rank)]);
  }
  ops::testing::Ranks(how.mesh).run([&](ops::testing::Ranks::Rank& me) {
    Partitioning mine = how;
    mine.coordinates = me.mesh.coordinates();
    const ir::Graph& graph = graphs[static_cast<size_t>(how.mesh.rank(mine.coordinates))];
    const auto shard_of = [](const auto& map, const std::string& name) {
      const auto at = map.find(name);
      return at == map.end() ? Shard() : at->second;
    };
    Feeds parts;
    for (const auto& [name, t] : feeds) parts[name] = part_of_rank(t, shard_of(how.placed, name), mine);
    const Feeds got = run_by_name(graph, parts, [&](const ir::Node& node, const std::vector<Tensor>& in) {
      return me.eval(node.op_name(), in, node.attrs, node.out.size());
    });
    const std::lock_guard<std::mutex> lock(reports);
    for (const auto& [name, t] : want) {
      const Tensor part = part_of_rank(t, shard_of(how.outputs, name), mine);
      EXPECT_LE(distance(got.at(name), part), tolerance) << name << "\n" << ir::print(graph);
    }
  });
  return graphs[0];
}

}  // namespace trireme::tests
