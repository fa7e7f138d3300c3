// Tests random graphs with shape arithmetic. If their rows are shown to be independent, a row must give the
// same bytes alone, in a batch, in a part of the batch and beside rows of infinities.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "lower/batch_proof.h"
#include "engine/session/session.h"
#include "ops/table.h"

namespace trireme {
namespace {

using ir::ValueId;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

Tensor noise(const Dims& dims, base::Rng& rng) {
  Tensor t = Tensor::empty(DType::f32, dims);
  for (float& v : t.mutable_data<float>()) v = static_cast<float>(2 * rng.uniform() - 1);
  return t;
}

/// Grows a graph over x f32[n, 4, 6, 6] node by node, without nodes whose operands do not fit. About one node
/// in eight reads across rows or depends on the number of rows.
class RowGraphBuilder {
 public:
  explicit RowGraphBuilder(uint64_t seed) : rng_(seed) {
    values_.push_back(graph_.add_input("x", {DType::f32, {tensor::Dim::symbol("n"), 4, 6, 6}}));
  }

  ir::Graph build() {
    const size_t nodes = 3 + below(8);
    for (size_t tries = 0; values_.size() < nodes && tries < 60; ++tries) {
      try {
        grow(some());
      } catch (const base::Error&) {  // the operands do not fit
      }
    }
    graph_.add_output(values_.back(), "last");
    graph_.add_output(some(), "some");
    graph_.sort();
    return std::move(graph_);
  }

 private:
  size_t below(size_t n) { return rng_() % static_cast<uint32_t>(n); }
  bool seldom() { return below(8) == 0; }
  ValueId some() { return values_[values_.size() - 1 - below(std::min<size_t>(3, values_.size()))]; }
  size_t rank(ValueId x) { return graph_.type(x).shape.rank(); }
  const tensor::Shape& shape(ValueId x) { return graph_.type(x).shape; }
  /// The extent of a dimension; an arbitrary number if it is open.
  int64_t extent(ValueId x, size_t d) { return shape(x)[d].is_static() ? shape(x)[d].value() : 3; }
  /// A dimension, which is the outermost one only one time in eight.
  int64_t axis_of(ValueId x) {
    const size_t r = rank(x);
    return static_cast<int64_t>(r < 2 || seldom() ? below(r) : 1 + below(r - 1));
  }

  std::vector<ValueId> all(const char* op, std::vector<ValueId> in, ir::Attrs attrs, size_t results) {
    return graph_.add(ops::table().need(op), std::move(in), std::move(attrs), results, op);
  }
  ValueId add(const char* op, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return all(op, std::move(in), std::move(attrs), 1)[0];
  }
  void keep(ValueId id) {
    if (graph_.type(id).dtype != DType::f32) id = add("cast", {id}, {{"to", int64_t{1}}});
    if (shape(id).has_rank() && rank(id) > 0 && rank(id) < 6) values_.push_back(id);
  }
  ValueId weight(const Dims& dims) { return graph_.add_param("", noise(dims, rng_)); }
  ValueId number(float v) { return graph_.add_constant(Tensor::scalar<float>(v)); }
  ValueId ints(Ints v) {
    return graph_.add_constant(
        Tensor::from<int64_t>({static_cast<int64_t>(v.size())}, std::span<const int64_t>(v)));
  }
  ValueId count(int64_t v) { return graph_.add_constant(Tensor::scalar<int64_t>(v)); }

  void grow(ValueId x) {
    switch (below(9)) {
      case 0:
      case 1: return grow_elements(x);
      case 2:
      case 3: return grow_along_axis(x);
      case 4: return grow_layer(x);
      case 5: return grow_moves(x);
      case 6: return grow_view(x);
      case 7: return grow_lookup(x);
      default: return grow_extents(x);
    }
  }

  void grow_elements(ValueId x) {
    switch (below(7)) {
      case 0: return keep(add("relu", {x}));
      case 1: return keep(add("sigmoid", {x}));
      case 2: return keep(add("add", {x, some()}));
      case 3: return keep(add("mul", {x, weight({extent(x, rank(x) - 1)})}));
      case 4: return keep(add("where", {add("greater", {x, number(0)}), x, some()}));
      case 5: return keep(add("max", {x, some(), number(0.1f)}));
      default: return keep(add("clip", {x, number(-0.4f), number(0.6f)}));
    }
  }

  void grow_along_axis(ValueId x) {
    const int64_t axis = axis_of(x), keeps = static_cast<int64_t>(below(2));
    switch (below(8)) {
      case 0: return keep(add("softmax", {x}, {{"axis", axis}}));
      case 1: return keep(add("reduce_mean", {x, ints({axis})}, {{"keepdims", keeps}}));
      case 2: return keep(add("reduce_max", {x, ints({axis})}, {{"keepdims", int64_t{1}}}));
      case 3: return keep(add("cum_sum", {x, count(axis)}));
      case 4: return keep(add("arg_max", {x}, {{"axis", axis}, {"keepdims", keeps}}));
      case 5: return keep(add("top_k", {x, ints({2})}, {{"axis", axis}}));
      case 6: return keep(add("layer_norm", {x, weight({extent(x, rank(x) - 1)})}));
      default: return keep(add("l2_normalize", {x}, {{"axis", axis}}));
    }
  }

  void grow_layer(ValueId x) {
    const int64_t channels = rank(x) < 2 ? 1 : extent(x, 1), last = extent(x, rank(x) - 1);
    const ir::Attrs window{{"kernel_shape", Ints{3, 3}}, {"pads", Ints{1, 1, 1, 1}}};
    switch (below(6)) {
      case 0: return keep(add("conv", {x, weight({5, channels, 3, 3})}, {{"pads", Ints{1, 1, 1, 1}}}));
      case 1: {
        const ValueId c = weight({channels}), var = add("abs", {weight({channels})});
        if (!seldom()) return keep(add("batch_norm", {x, c, c, c, var}));
        return keep(all("batch_norm", {x, c, c, c, var}, {{"training_mode", int64_t{1}}}, 3)[below(2)]);
      }
      case 2: return keep(seldom() ? all("max_pool", {x}, window, 2)[1] : add("max_pool", {x}, window));
      case 3: return keep(add("matmul", {x, weight({last, 5})}));
      case 4: return keep(add("matmul", {x, add("transpose", {x}, {{"perm", swapped(rank(x))}})}));
      default:
        if (!seldom()) return keep(add("average_pool", {x}, window));
        const auto q = all("dynamic_quantize_linear", {x}, {}, 3);
        return keep(add("dequantize_linear", {q[0], q[1], q[2]}));
    }
  }
  Ints swapped(size_t rank) {
    Ints perm;
    for (size_t d = 0; d < rank; ++d) perm.push_back(static_cast<int64_t>(d));
    if (rank > 1) std::swap(perm[rank - 1], perm[rank - 2]);
    return perm;
  }

  void grow_moves(ValueId x) {
    const int64_t axis = axis_of(x);
    switch (below(6)) {
      case 0: {
        Ints perm = swapped(rank(x));
        for (size_t d = seldom() ? 0 : 1; d + 1 < perm.size(); ++d)
          std::swap(perm[d], perm[d + below(perm.size() - d)]);
        return keep(add("transpose", {x}, {{"perm", perm}}));
      }
      case 1: return keep(add("concat", {x, some()}, {{"axis", axis}}));
      case 2: return keep(add("gather", {x, ints({1, 0})}, {{"axis", axis}}));
      case 3: return keep(add("slice", {x, ints({1}), ints({1 << 30}), ints({axis})}));
      case 4: return keep(all("split", {x}, {{"axis", axis}, {"num_outputs", int64_t{2}}}, 2)[below(2)]);
      default: {
        Ints pads(2 * rank(x), 0);
        pads[static_cast<size_t>(axis)] = 1;
        return keep(add("pad", {x, ints(pads)}));
      }
    }
  }

  void grow_view(ValueId x) {
    const int64_t last = extent(x, rank(x) - 1);
    switch (below(7)) {
      case 0: return keep(add("reshape", {x, ints({-1, last})}));
      case 1: return keep(add("reshape", {x, ints({0, -1})}));
      case 2: return keep(add("reshape", {x, ints({-1, 4, 6, 6})}));
      case 3: return keep(add("reshape", {x, ints({-1, seldom() ? 2 * last : 4, last})}));
      case 4: return keep(add("flatten", {x}, {{"axis", static_cast<int64_t>(below(rank(x) + 1))}}));
      case 5: return keep(add("unsqueeze", {x, ints({axis_of(x)})}));
      default:
        return keep(add("reshape", {x, add("concat", {rows(), ints({-1, 6})}, {{"axis", int64_t{0}}})}));
    }
  }

  /// Each row looks up its own values by its number, as exporters write indexing: by tuples or by positions
  /// in a flat view. About one graph in four looks up other rows' values, within the tensor.
  void grow_lookup(ValueId x) {
    if (rank(x) < 2) return;
    const int64_t inner = extent(x, 1);
    const auto from_end = [&](ValueId numbers) { return add("sub", {count(-1), numbers}); };
    ValueId numbers = add("range", {count(0), add("squeeze", {rows(), ints({0})}), count(1)});
    if (seldom()) numbers = from_end(numbers);
    numbers = add("unsqueeze", {numbers, ints({1})});
    Ints places;
    for (size_t i = 0; i < 1 + below(3); ++i)
      places.push_back(static_cast<int64_t>(below(static_cast<size_t>(inner))));
    if (below(2) == 0) {  // indices [n, places] into a flat view
      const ValueId ahead = add("mul", {numbers, count(seldom() ? 1 : inner)});
      const ValueId flat = add(
          "reshape", {x, add("concat", {ints({-1}), add("slice", {add("shape", {x}), ints({2}), ints({9})})},
                             {{"axis", int64_t{0}}})});
      return keep(add("gather", {flat, add("add", {ints(places), ahead})}, {{"axis", int64_t{0}}}));
    }
    const ValueId to = add("concat", {rows(), ints({1})}, {{"axis", int64_t{0}}});
    const ValueId column = add("expand", {ints({places[0]}), to});
    return keep(add("gather_nd", {x, add("concat", {numbers, column}, {{"axis", int64_t{-1}}})}));
  }

  /// i64[1]: the number of rows, computed in one of the ways that exporters use.
  ValueId rows() {
    const ValueId all = add("shape", {values_[0]});
    switch (below(4)) {
      case 0: return add("shape", {values_[0]}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
      case 1: return add("slice", {all, ints({0}), ints({1})});
      case 2: return add("unsqueeze", {add("gather", {all, count(0)}), ints({0})});
      default: return add("unsqueeze", {add("div", {add("size", {values_[0]}), count(144)}), ints({0})});
    }
  }

  void grow_extents(ValueId x) {
    const ValueId n = rows();
    switch (below(9)) {
      case 0: {
        const ValueId to = add("concat", {n, ints({4, 6, 6})}, {{"axis", int64_t{0}}});
        return keep(add("expand", {weight({1, 4, 1, 6}), to}));
      }
      case 1: {
        const ValueId extents = add("shape", {x});
        const ValueId ones = add("constant_of_shape", {extents});
        return keep(add("add", {ones, x}));
      }
      case 2: {  // expand, as exporters write it
        const ValueId to = add("shape", {x}), is_same = add("equal", {to, count(-1)});
        const ValueId ones = ints(Ints(rank(x), 1));
        return keep(
            add("expand", {add("reduce_max", {x, ints({axis_of(x)})}), add("where", {is_same, ones, to})}));
      }
      case 3: return seldom() ? keep(add("div", {x, add("cast", {n}, {{"to", int64_t{1}}})})) : grow_view(x);
      case 4: {
        if (!seldom()) return grow_view(x);
        return keep(add("where", {add("greater", {n, count(4)}), x, add("relu", {x})}));
      }
      case 5: {
        if (!seldom()) return grow_elements(x);
        const ValueId places = add("range", {count(0), add("squeeze", {n, ints({0})}), count(1)});
        Ints axes;
        for (size_t d = 1; d < rank(x); ++d) axes.push_back(static_cast<int64_t>(d));
        return keep(
            add("add", {x, add("unsqueeze", {add("cast", {places}, {{"to", int64_t{1}}}), ints(axes)})}));
      }
      case 6: {
        const ValueId to =
            add("concat", {seldom() ? add("add", {n, count(1)}) : n, ints({-1})}, {{"axis", int64_t{0}}});
        return keep(add("reshape", {x, to}));
      }
      case 7: {
        const ValueId at = add("sub", {n, count(1)});
        return seldom() ? keep(add("gather", {x, at}, {{"axis", int64_t{0}}})) : grow_moves(x);
      }
      default: {
        const ValueId to = add("concat", {add("mul", {n, ints({2})}), ints({-1})}, {{"axis", int64_t{0}}});
        return keep(add("reshape", {x, to}));
      }
    }
  }

  ir::Graph graph_;
  base::Rng rng_;
  std::vector<ValueId> values_;
};

/// Rows [begin, end) of each result.
std::vector<Tensor> rows_of(const std::vector<Tensor>& results, int64_t begin, int64_t end) {
  std::vector<Tensor> out;
  for (const Tensor& t : results) out.push_back(t.rows(begin, end));
  return out;
}

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& x, const Tensor& y) { return x.same_as(y); });
}

struct Tally {
  int shown = 0, sliced = 0, unshown = 0, held = 0, refused = 0;
};

constexpr int64_t kRows = 8;

/// Describes how rows in a batch differ from rows alone; empty if they do not.
std::string difference(engine::Session& batch, engine::Session& alone, const Tensor& x) {
  const std::vector<Tensor> all = batch.run({x});
  for (const Tensor& t : all) {
    if (t.rank() == 0 || t.dims()[0] != kRows) return base::concat("a result is ", t.type().to_string());
  }
  for (const int64_t i : {int64_t{0}, int64_t{3}, kRows - 1}) {
    const std::vector<Tensor> mine = rows_of(all, i, i + 1);
    if (!same(mine, alone.run({x.rows(i, i + 1)}))) return base::concat("row ", i, " alone differs");
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), INFINITY, 1e30f}) {
      Tensor strange = x.clone();
      const int64_t row = x.elements() / kRows;
      auto elements = strange.mutable_data<float>();
      for (int64_t e = 0; e < x.elements(); ++e) {
        if (e / row != i) elements[static_cast<size_t>(e)] = value;
      }
      if (!same(mine, rows_of(batch.run({strange}), i, i + 1)))
        return base::concat("row ", i, " differs beside rows of ", value);
    }
  }
  if (!same(rows_of(all, 2, 5), alone.run({x.rows(2, 5)}))) return "rows 2 to 4 differ";
  return {};
}

void try_graph(uint64_t seed, Tally& tally) {
  ir::Graph graph = RowGraphBuilder(seed).build();
  SCOPED_TRACE(base::concat("seed ", seed, "\n", ir::print(graph)));
  base::Rng rng(seed + 1);
  const Tensor x = noise({kRows, 4, 6, 6}, rng);
  std::string why, wrong;
  bool is_shown = false;
  try {
    const auto model = std::make_shared<const engine::PreparedModel>(std::move(graph));
    engine::Session batch(model, {.threads = seed % 2 == 0 ? 1 : 4}), alone(model, {.threads = 1});
    batch.run({x});
    why = lower::why_not_batched(model->graph());
    tally.sliced += batch.slices({x.dims()}) > 1 ? 1 : 0;
    EXPECT_TRUE(batch.slices({x.dims()}) == 1 || why.empty()) << "in slices: " << why;
    if (why.empty()) {
      is_shown = true;
      ++tally.shown;
      EXPECT_EQ(difference(batch, alone, x), "");
      return;
    }
    ++tally.unshown;
    wrong = difference(batch, alone, x);
  } catch (const base::Error& e) {
    EXPECT_FALSE(is_shown) << e.what();
    ++tally.refused;
    return;
  }
  tally.held += wrong.empty() ? 1 : 0;
  if (wrong.empty() && std::getenv("TRIREME_SHOW_UNSHOWN") != nullptr)
    std::cout << "held though " << why << "\n";
}

TEST(RandomRows, ShownRowsAreIndependent) {
  Tally tally;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    try_graph(seed, tally);
    if (HasFailure()) break;
  }
  std::cout << tally.shown << " graphs shown to keep rows apart (" << tally.sliced << " ran in slices), "
            << tally.unshown << " not, of which " << tally.held << " held in all trials; " << tally.refused
            << " do not run\n";
  EXPECT_GT(tally.shown, 500);
  EXPECT_GT(tally.unshown, 200);
}

}  // namespace
}  // namespace trireme
