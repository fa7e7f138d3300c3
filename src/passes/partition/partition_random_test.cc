// The partition pass on random graphs: forward and backward results of all ranks against those of the whole
// graph.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "passes/partition/partition.h"
#include "tests/partition_trial.h"

namespace trireme::passes {
namespace {

using namespace tests;

/// Draws graphs with extents that are mostly multiples of 12, so that 2, 3 and 4 ranks divide them.
class Drawer {
 public:
  Drawer(uint64_t seed, MeshShape mesh) : rng_(seed, 17), mesh_(std::move(mesh)) {}

  Model model;

  ValueId draw(int nodes) {
    for (int i = 0; i < 2; ++i) {
      const ValueId x = model.input("x" + std::to_string(i), {12, 24});
      model.placed["x" + std::to_string(i)] = placement({12, 24});
      values_.push_back(x);
    }
    values_.push_back(weight({24}));
    for (int i = 0; i < nodes; ++i) values_.push_back(node());
    // The last values become part of the result.
    ValueId y = sum_of(values_.back());
    for (size_t i = values_.size() - 4; i + 1 < values_.size(); ++i)
      y = model.op("add", {y, sum_of(values_[i])});
    return model.reshape(y, {1});
  }

  /// A random split of a tensor over each axis of the mesh.
  Shard placement(const tensor::Dims& dims) {
    Shard shard;
    tensor::Dims left = dims;
    std::vector<int> sections(dims.size(), 0);
    for (size_t a = mesh_.axes().size(); a-- > 0;) {
      const size_t d = static_cast<size_t>(below(static_cast<int64_t>(dims.size()) + 1));
      if (d == dims.size()) continue;
      const int wanted = sections[d] != 0 ? sections[d] : below(4) == 0 ? 3 : 1;
      const int ranks = mesh_.axes()[a].extent;
      if (left[d] % (wanted * ranks) != 0) continue;
      sections[d] = wanted;
      left[d] /= ranks;
      shard.set(a, Placement::split(static_cast<int>(d), wanted));
    }
    return shard;
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(rng_.uniform() * static_cast<double>(n)); }
  tensor::Dims dims(ValueId v) const { return model.graph.type(v).shape.to_dims(); }
  ValueId any() { return values_[static_cast<size_t>(below(static_cast<int64_t>(values_.size())))]; }
  ValueId weight(tensor::Dims dims) {
    const Shard shard = placement(dims);
    return model.weight("w" + std::to_string(model.weights.size()), std::move(dims), shard);
  }
  ValueId sum_of(ValueId v) {
    std::vector<int64_t> axes;
    for (size_t d = 0; d < dims(v).size(); ++d) axes.push_back(static_cast<int64_t>(d));
    return model.op("reduce_sum", {v, model.ints(axes)}, {{"keepdims", int64_t{0}}});
  }

  ValueId node() {
    const ValueId x = any();
    const tensor::Dims d = dims(x);
    const int64_t rank = static_cast<int64_t>(d.size());
    const int64_t axis = below(rank);
    switch (below(16)) {
      case 0: return model.op("gelu", {x});
      case 1: return model.op("add", {x, partner(x)});
      case 2: return model.op("mul", {x, partner(x)});
      case 3: return transposed(x);
      case 4: return reshaped(x);
      case 5: return model.op("softmax", {x}, {{"axis", axis}});
      case 6: return product(x);
      case 7: return linear(x);
      case 8: return linear(x);
      case 9: return split(x, axis);
      case 10: return sliced(x, axis);
      case 11: return model.op("concat", {x, x}, {{"axis", axis}});
      case 12: return reduced(x, axis);
      case 13: return normed(x);
      case 14: return looked_up(x, axis);
      default: return model.op("tanh", {linear(x)});
    }
  }

  /// A random value that broadcasts to x.
  ValueId partner(ValueId x) {
    std::vector<ValueId> same;
    for (ValueId v : values_) {
      if (dims(v) == dims(x)) same.push_back(v);
    }
    if (below(3) != 0) return same[static_cast<size_t>(below(static_cast<int64_t>(same.size())))];
    tensor::Dims d = dims(x);
    const auto drop = below(static_cast<int64_t>(d.size()));
    d.erase(d.begin(), d.begin() + drop);
    if (below(2) == 0) d[0] = 1;
    return weight(d);
  }

  ValueId transposed(ValueId x) {
    std::vector<int64_t> perm(dims(x).size());
    for (size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<int64_t>(i);
    for (size_t i = perm.size(); i > 1; --i)
      std::swap(perm[i - 1], perm[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    return model.transpose(x, perm);
  }

  /// Splits a dimension in two, or joins two adjacent ones.
  ValueId reshaped(ValueId x) {
    tensor::Dims d = dims(x);
    const size_t at = static_cast<size_t>(below(static_cast<int64_t>(d.size())));
    if (below(2) == 0 && at + 1 < d.size()) {
      d[at] *= d[at + 1];
      d.erase(d.begin() + static_cast<int64_t>(at) + 1);
    } else if (d.size() < 4) {
      const int64_t factor = std::array<int64_t, 4>{2, 3, 4, 1}[static_cast<size_t>(below(4))];
      if (d[at] % factor != 0) return model.op("neg", {x});
      d[at] /= factor;
      d.insert(d.begin() + static_cast<int64_t>(at) + below(2), factor);
    }
    return model.reshape(x, d);
  }

  ValueId product(ValueId x) {
    if (dims(x).size() < 2) return model.op("neg", {x});
    std::vector<int64_t> perm(dims(x).size());
    for (size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<int64_t>(i);
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
    const ValueId y = model.op("matmul", {x, model.transpose(x, perm)});
    return model.op("tanh", {model.op("mul", {y, scalar(0.1)})});
  }

  ValueId scalar(double v) { return model.graph.add_constant(Tensor::scalar<double>(v)); }

  ValueId linear(ValueId x) {
    const int64_t k = dims(x).back(), n = std::array<int64_t, 3>{12, 24, 36}[static_cast<size_t>(below(3))];
    const bool transposed = below(2) == 0;
    std::vector<ValueId> in{x, transposed ? weight({n, k}) : weight({k, n})};
    if (below(2) == 0) in.push_back(weight({n}));
    ir::Attrs attrs{{"transposed", int64_t{transposed}}};
    if (below(3) == 0) attrs.set("activation", std::string("relu"));
    return model.op("mul", {model.op("linear", in, attrs), scalar(0.2)});
  }

  ValueId split(ValueId x, int64_t axis) {
    const int64_t pieces = std::array<int64_t, 2>{2, 3}[static_cast<size_t>(below(2))];
    const int64_t extent = dims(x)[static_cast<size_t>(axis)];
    if (extent % pieces != 0) return model.op("neg", {x});
    std::vector<ValueId> in{x};
    ir::Attrs attrs{{"axis", axis}};
    if (below(2) == 0)
      in.push_back(model.ints(std::vector<int64_t>(static_cast<size_t>(pieces), extent / pieces)));
    else
      attrs.set("num_outputs", pieces);
    const auto parts =
        model.graph.add(ops::table().need("split"), in, attrs, static_cast<size_t>(pieces), "split");
    return model.op("mul", {parts[0], parts.back()});
  }

  ValueId sliced(ValueId x, int64_t axis) {
    const int64_t extent = dims(x)[static_cast<size_t>(axis)];
    const int64_t piece = extent % 2 == 0 && below(2) == 0 ? extent / 2 : std::max<int64_t>(1, extent - 1);
    const int64_t start = piece * 2 == extent && below(2) == 0 ? piece : 0;
    return model.op("slice", {x, model.ints({start}), model.ints({start + piece}), model.ints({axis})});
  }

  ValueId reduced(ValueId x, int64_t axis) {
    const std::array<const char*, 3> kinds{"reduce_sum", "reduce_mean", "reduce_max"};
    if (dims(x).size() < 2) return model.op("neg", {x});
    return model.op(kinds[static_cast<size_t>(below(3))], {x, model.ints({axis})}, {{"keepdims", below(2)}});
  }

  ValueId normed(ValueId x) {
    const int64_t n = dims(x).back();
    return model.op("layer_norm", {x, weight({n}), weight({n})}, {{"axis", int64_t{-1}}, {"epsilon", 1e-3}});
  }

  ValueId looked_up(ValueId x, int64_t axis) {
    const int64_t extent = dims(x)[static_cast<size_t>(axis)];
    std::vector<int64_t> ids;
    for (int i = 0; i < 12; ++i) ids.push_back(below(extent));
    return model.op("gather", {x, model.ints(ids)}, {{"axis", axis}});
  }

  base::Rng rng_;
  MeshShape mesh_;
  std::vector<ValueId> values_;
};

void check(uint64_t seed, const MeshShape& mesh) {
  SCOPED_TRACE(base::concat("seed ", seed, ", ", mesh.size(), " ranks"));
  Drawer drawer(seed, mesh);
  const ValueId y = drawer.draw(8 + static_cast<int>(seed % 16));
  Partitioning how = drawer.model.finish(y, mesh);
  if (seed % 3 == 0) how.sequence_axis = "tp";
  expect_same(drawer.model.graph, how, drawer.model.feeds, 1e-9);
}

TEST(PartitionRandom, OneAxis) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    for (int ranks : {2, 3, 4}) check(seed, tp(ranks));
    if (::testing::Test::HasFailure()) break;
  }
}

TEST(PartitionRandom, TwoAxes) {
  for (uint64_t seed = 100; seed < 124; ++seed) {
    check(seed, MeshShape({{"tpr", 2}, {"tp", 2}}));
    if (::testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace trireme::passes
