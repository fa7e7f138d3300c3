// Compares random networks on plain kernels without passes and with all passes: finds fusions that err.
// result.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "engine/session/session.h"
#include "ops/table.h"
#include "passes/lists/lists.h"
#include "tests/test_device.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

Tensor noise(const Dims& dims, base::Rng& rng) {
  Tensor t = Tensor::empty(DType::f32, dims);
  for (float& v : t.mutable_data<float>()) v = static_cast<float>(2 * rng.uniform() - 1);
  return t;
}

/// Builds one network layer by layer; a layer may read any earlier value that fits.
class Builder {
 public:
  explicit Builder(uint64_t seed) : rng_(seed) {
    images_.push_back(graph_.add_input("image", {DType::f32, {2, 4, 6, 5}}));
    rows_.push_back(graph_.add_input("rows", {DType::f32, {2, 3, 16}}));
  }

  ir::Graph build() {
    for (int layer = 0; layer < 18; ++layer) {
      if (below(2) == 0) {
        grow_image();
      } else {
        grow_rows();
      }
    }
    graph_.add_output(images_.back(), "image_out");
    graph_.add_output(rows_.back(), "rows_out");
    // An inner value that is also an output of the graph must survive every fusion.
    graph_.add_output(images_[below(images_.size())], "image_inner");
    graph_.add_output(rows_[below(rows_.size())], "rows_inner");
    graph_.sort();
    return std::move(graph_);
  }

 private:
  size_t below(size_t n) { return rng_() % static_cast<uint32_t>(n); }
  ValueId add(const char* op, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return graph_.add1(ops::table().need(op), std::move(in), std::move(attrs));
  }
  ValueId weight(const Dims& dims) { return graph_.add_param("", noise(dims, rng_)); }
  ValueId number(float v) { return graph_.add_constant(Tensor::scalar<float>(v)); }
  ValueId ints(std::vector<int64_t> v) {
    return graph_.add_constant(
        Tensor::from<int64_t>({static_cast<int64_t>(v.size())}, std::span<const int64_t>(v)));
  }
  ValueId some(const std::vector<ValueId>& list) {
    return list[list.size() - 1 - below(std::min<size_t>(3, list.size()))];
  }

  /// An elementwise activation, in one of the forms that exporters use.
  ValueId activation(ValueId x) {
    switch (below(11)) {
      case 0: return add("relu", {x});
      case 1: return add("mul", {x, add("sigmoid", {x})});
      case 2: return add("clip", {x, number(-0.5f), number(0.8f)});
      case 3: return add("leaky_relu", {x}, {{"alpha", 0.2}});
      case 4: return add("tanh", {x});
      case 5: return add("hard_swish", {x});
      case 6: {
        const ValueId inner = add("add", {add("erf", {add("div", {x, number(1.41421356f)})}), number(1)});
        return add("mul", {add("mul", {x, inner}), number(0.5f)});
      }
      case 7: {
        const ValueId inner = add("clip", {add("add", {x, number(3)}), number(0), number(6)});
        return add("div", {add("mul", {x, inner}), number(6)});
      }
      case 8: return add("hard_sigmoid", {x}, {{"alpha", 0.25}, {"beta", 0.4}});
      case 9: return add("identity", {x});
      default: return add("max", {x, add("mul", {x, number(0.3f)})});
    }
  }

  /// Adds a layer on images, which are all [2,4,6,5].
  void grow_image() {
    const ValueId x = some(images_);
    switch (below(9)) {
      case 0: images_.push_back(add("conv", {x, weight({4, 4, 3, 3})}, {{"pads", kSame}})); break;
      case 1:
        images_.push_back(
            add("conv", {x, weight({4, 1, 3, 3}), weight({4})}, {{"pads", kSame}, {"group", int64_t{4}}}));
        break;
      case 2: images_.push_back(add("conv", {x, weight({4, 4, 1, 1}), weight({4})})); break;
      case 3: {
        const ValueId variance = add("add", {add("abs", {weight({4})}), number(0.5f)});
        images_.push_back(add("batch_norm", {x, weight({4}), weight({4}), weight({4}), variance}));
        break;
      }
      case 4: images_.push_back(add("add", {x, some(images_)})); break;
      case 5:
        images_.push_back(
            add("max_pool", {x}, {{"kernel_shape", std::vector<int64_t>{3, 3}}, {"pads", kSame}}));
        break;
      case 6: images_.push_back(add("mul", {x, weight({4, 1, 1})})); break;
      case 7: {
        const ValueId pooled = add("global_average_pool", {x});
        images_.push_back(add("mul", {x, add("sigmoid", {add("conv", {pooled, weight({4, 4, 1, 1})})})}));
        break;
      }
      default: images_.push_back(activation(x));
    }
  }

  ValueId normalised(ValueId x) {
    const ValueId axis = ints({-1});
    const bool centred = below(2) == 0;
    const ValueId v = centred ? add("sub", {x, add("reduce_mean", {x, axis})}) : x;
    const ValueId mean = add("reduce_mean", {add("mul", {v, v}), axis});
    const ValueId unit = add("div", {v, add("sqrt", {add("add", {mean, number(1e-3f)})})});
    const ValueId scaled = add("mul", {unit, weight({16})});
    return below(2) == 0 ? scaled : add("add", {scaled, weight({16})});
  }

  ValueId attended(ValueId x) {
    const auto heads = [&](ValueId y) { return add("reshape", {y, ints({2, 3, 4, 4})}); };
    const ValueId q = add("transpose", {heads(add("matmul", {x, weight({16, 16})}))}, {{"perm", kHeads}});
    const ValueId k = add("transpose", {heads(add("matmul", {x, weight({16, 16})}))}, {{"perm", kKeys}});
    const ValueId v = add("transpose", {heads(x)}, {{"perm", kHeads}});
    ValueId scores = add("mul", {add("matmul", {q, k}), number(0.5f)});
    if (below(2) == 0) scores = add("add", {scores, weight({1, 1, 3, 3})});
    const ValueId y = add("matmul", {add("softmax", {scores}, {{"axis", int64_t{-1}}}), v});
    return add("reshape", {add("transpose", {y}, {{"perm", kHeads}}), ints({2, 3, 16})});
  }

  /// Adds a layer on rows, which are all [2,3,16].
  void grow_rows() {
    const ValueId x = some(rows_);
    switch (below(9)) {
      case 0: rows_.push_back(add("matmul", {x, weight({16, 16})})); break;
      case 1: rows_.push_back(add("add", {add("matmul", {x, weight({16, 16})}), weight({16})})); break;
      case 2: rows_.push_back(add("add", {x, some(rows_)})); break;
      case 3: rows_.push_back(normalised(x)); break;
      case 4: {
        const ValueId axis = ints({2}), e = add("exp", {add("sub", {x, add("reduce_max", {x, axis})})});
        rows_.push_back(add("div", {e, add("reduce_sum", {e, axis})}));
        break;
      }
      case 8: rows_.push_back(add("softmax", {x}, {{"axis", static_cast<int64_t>(below(3)) - 1}})); break;
      case 5: rows_.push_back(attended(x)); break;
      case 6: {
        const ValueId flat = add("reshape", {x, ints({6, 16})});
        const ValueId y = add("gemm", {flat, weight({16, 16}), weight({16})}, {{"transB", int64_t{1}}});
        rows_.push_back(add("reshape", {y, ints({2, 3, 16})}));
        break;
      }
      default: rows_.push_back(activation(x));
    }
  }

  const std::vector<int64_t> kSame{1, 1, 1, 1}, kHeads{0, 2, 1, 3}, kKeys{0, 2, 3, 1};
  base::Rng rng_;
  ir::Graph graph_;
  std::vector<ValueId> images_, rows_;
};

PassOptions no_graph_passes() {
  PassOptions options;
  for (const auto* list : {&prepare_passes(), &bucket_passes()}) {
    for (const Pass& p : *list) options.off.push_back(p.name);
  }
  return options;
}

std::vector<Tensor> run_graph(const ir::Graph& graph, const PassOptions& passes, const std::string& kernel,
                              int threads) {
  const auto model = std::make_shared<const engine::PreparedModel>(graph, passes);
  engine::Session session(
      model,
      {.device = tests::device_under_test(), .threads = threads, .only_kernel = kernel, .passes = passes});
  base::Rng rng(1);
  return session.run({noise({2, 4, 6, 5}, rng), noise({2, 3, 16}, rng)});
}

/// The largest difference, relative to the largest magnitude.
double distance(const Tensor& want, const Tensor& got) {
  const std::vector<double> a = want.to_doubles(), b = got.to_doubles();
  double largest = 1e-3, worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::isfinite(a[i]) && std::isfinite(b[i]))) return a[i] == b[i] ? 0 : INFINITY;
    largest = std::max(largest, std::abs(a[i]));
    worst = std::max(worst, std::abs(a[i] - b[i]));
  }
  return worst / largest;
}

TEST(RandomNetworks, PassesChangeNoResult) {
  std::map<std::string, size_t> changes;
  const auto count = [&](const PassRecord& record, const ir::Graph&) {
    changes[record.name] += record.changes;
  };
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const ir::Graph graph = Builder(seed).build();
    const std::vector<Tensor> want = run_graph(graph, no_graph_passes(), "reference", 1);
    const std::vector<Tensor> got = run_graph(graph, {.verify = true, .after = count}, {}, 2);
    ASSERT_EQ(want.size(), got.size());
    for (size_t o = 0; o < want.size(); ++o) {
      ASSERT_EQ(want[o].dims(), got[o].dims()) << "seed " << seed;
      // Norms sometimes divide by small numbers, so rounding errors grow from layer to layer.
      ASSERT_LE(distance(want[o], got[o]), 2e-4) << "seed " << seed << " output " << o << "\n"
                                                 << ir::print(graph);
    }
  }
  // The test is useful only if these networks contain work for every fusion.
  for (const char* pass :
       {"noops", "batch_norm", "cse", "activations", "norms", "softmax", "attention", "channels_last",
        "sink_transposes", "input_layout", "linear", "epilogue", "fuse_elementwise"}) {
    EXPECT_GT(changes[pass], 10u) << pass;
  }
}

}  // namespace
}  // namespace trireme::passes
