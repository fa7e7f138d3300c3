// Collectives as operators: layouts against naive loops over the whole tensor, gradients against differences
// of the ranks' common loss.
#include <gtest/gtest.h>

#include "ops/collective/test_ranks_cpu.h"
#include "ops/grad.h"

namespace trireme::ops::testing {
namespace {

using tensor::Dims;
using tensor::MeshShape;
using tensor::Placement;
using tensor::Shard;

/// The elements that a rank holds: the boxes of `whole` one after another along `dim`.
Tensor part_of(const Tensor& whole, size_t dim, int sections, const MeshShape& axes, int rank) {
  Shard shard;
  for (size_t a = 0; a < axes.axes().size(); ++a)
    shard.set(a, Placement::split(static_cast<int>(dim), sections));
  const std::vector<int> at = axes.coordinates(rank);
  Tensor part = Tensor::empty(whole.dtype(), tensor::local_dims(whole.dims(), shard, axes, at));
  int64_t before = 1, after = 1;
  for (size_t d = 0; d < dim; ++d) before *= whole.dims()[d];
  for (size_t d = dim + 1; d < whole.rank(); ++d) after *= whole.dims()[d];
  const int64_t bytes = tensor::bits_of(whole.dtype()) / 8;
  std::byte* to = part.mutable_raw();
  for (int64_t b = 0; b < before; ++b) {
    for (const tensor::Box& box : tensor::local_boxes(whole.dims(), shard, axes, at)) {
      for (int64_t i = 0; i < box.size[dim] * after * bytes; ++i) {
        *to++ = whole.raw()[((b * whole.dims()[dim] + box.offset[dim]) * after) * bytes + i];
      }
    }
  }
  return part;
}

/// The summand of each rank, with values of its own.
Tensor contribution(DType dtype, const Dims& dims, int rank, uint64_t seed = 3) {
  return random_tensor(dtype, dims, -2, 2, seed + 10 * static_cast<uint64_t>(rank));
}

Tensor sum_of(const std::vector<Tensor>& parts) {
  Tensor sum = Tensor::empty(DType::f64, parts[0].dims());
  const auto y = sum.mutable_data<double>();
  std::fill(y.begin(), y.end(), 0);
  for (const Tensor& p : parts) {
    const std::vector<double> x = p.to_doubles();
    for (size_t i = 0; i < x.size(); ++i) y[i] += x[i];
  }
  return sum;
}

void expect_same(const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.dims(), want.dims());
  const std::vector<double> a = got.to_doubles(), b = want.to_doubles();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << "element " << i;
}

void expect_near(const Tensor& got, const Tensor& want, double tolerance) {
  ASSERT_EQ(got.dims(), want.dims());
  const std::vector<double> a = got.to_doubles(), b = want.to_doubles();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "element " << i;
}

/// A whole tensor and how it is cut.
struct CutCase {
  Dims dims;
  int64_t dim;
  int sections = 1;
  std::string axes = "tp";
};

const std::vector<MeshShape>& meshes() {
  static const std::vector<MeshShape> all{
      MeshShape({{"dp", 1}, {"tp", 1}}), MeshShape({{"dp", 1}, {"tp", 2}}), MeshShape({{"dp", 1}, {"tp", 3}}),
      MeshShape({{"dp", 2}, {"tp", 2}})};
  return all;
}

std::vector<CutCase> cut_cases() {
  return {{{12}, 0},
          {{12, 5}, 0},
          {{3, 12}, 1},
          {{2, 24, 3}, 1, 2},
          {{24, 2}, 0, 3 - 1},
          {{7, 3}, 0},
          {{2, 7}, 1},
          {{2, 3}, 0},
          {{1, 9, 1}, 1},
          {{0, 4}, 0},
          {{12, 3}, 0, 1, "dp,tp"},
          {{3, 11}, 1, 1, "dp,tp"},
          {{2, 24}, 1, 2, "dp,tp"},
          {{600, 300}, 0},
          {{300, 600}, 1},
          {{1501, 400}, 1},
          {{3, 90001, 2}, 1},
          {{7, 240000}, 1, 2, "dp,tp"}};
}

ir::Attrs cut_attrs(const Ranks::Rank& rank, const CutCase& c) {
  ir::Attrs attrs = group_attrs(rank.mesh.shape(), rank.mesh.coordinates(), c.axes);
  return attrs.set("dim", c.dim).set("sections", int64_t{c.sections});
}

bool divides(const CutCase& c, const MeshShape& mesh) {
  int ranks = 1;
  for (size_t a : mesh.indices_of(c.axes)) ranks *= mesh.axes()[a].extent;
  return c.sections == 1 || c.dims[static_cast<size_t>(c.dim)] % (c.sections * ranks) == 0;
}

template <class Body>
void each_cut(const Body& body) {
  for (const MeshShape& mesh : meshes()) {
    for (const CutCase& c : cut_cases()) {
      if (!divides(c, mesh)) continue;
      SCOPED_TRACE(base::concat(mesh.size(), " ranks, ", tensor::to_string(c.dims), " along ", c.dim, " in ",
                                c.sections, " over ", c.axes));
      Ranks(mesh).run([&](Ranks::Rank& rank) { body(rank, c); });
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Collectives, GatherPutsPartsSideBySide) {
  each_cut([](Ranks::Rank& rank, const CutCase& c) {
    const Tensor whole = random_tensor(DType::f32, c.dims, -1, 1);
    const RankGroup group = RankGroup::of(cut_attrs(rank, c));
    const Tensor part = part_of(whole, static_cast<size_t>(c.dim), c.sections, group.shape, group.rank());
    ir::Attrs attrs = cut_attrs(rank, c);
    attrs.set("extents", std::vector<int64_t>{c.dims[static_cast<size_t>(c.dim)]});
    expect_same(rank.eval("all_gather", {part}, attrs)[0], whole);
    expect_same(rank.eval("shard_slice", {whole}, cut_attrs(rank, c))[0], part);
  });
}

TEST(Collectives, ReduceScatterIsAPartOfTheSum) {
  each_cut([](Ranks::Rank& rank, const CutCase& c) {
    const RankGroup group = RankGroup::of(cut_attrs(rank, c));
    std::vector<Tensor> all;
    for (int r = 0; r < group.size(); ++r) all.push_back(contribution(DType::f64, c.dims, r));
    const Tensor want =
        part_of(sum_of(all), static_cast<size_t>(c.dim), c.sections, group.shape, group.rank());
    const Tensor mine = all[static_cast<size_t>(group.rank())];
    expect_near(rank.eval("reduce_scatter", {mine}, cut_attrs(rank, c))[0], want, 1e-12);
  });
}

TEST(Collectives, BucketsAreTheSameAsOneByOne) {
  const std::vector<Dims> shapes{{3}, {5, 7}, {}, {512, 300}, {1}, {0}, {400, 400}};
  for (const MeshShape& mesh : meshes()) {
    Ranks(mesh).run([&](Ranks::Rank& rank) {
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i64}) {
        std::vector<Tensor> in;
        for (size_t i = 0; i < shapes.size(); ++i)
          in.push_back(contribution(i == 4 ? DType::f32 : dtype, shapes[i], rank.group("tp").rank(), 40 + i));
        const ir::Attrs attrs = rank.attrs("tp");
        const std::vector<Tensor> bucket = rank.eval("all_reduce", in, attrs, in.size());
        for (size_t i = 0; i < in.size(); ++i)
          expect_same(bucket[i], rank.eval("all_reduce", {in[i]}, attrs)[0]);
      }
    });
  }
}

TEST(Collectives, AllReduceSumsAndTakesTheMaximum) {
  Ranks(MeshShape({{"tp", 3}})).run([&](Ranks::Rank& rank) {
    std::vector<Tensor> all;
    for (int r = 0; r < 3; ++r) all.push_back(contribution(DType::f64, {4, 5}, r));
    const Tensor mine = all[static_cast<size_t>(rank.mesh.world().rank())];
    expect_near(rank.eval("all_reduce", {mine}, rank.attrs("tp"))[0], sum_of(all), 1e-12);
    const Tensor top = rank.eval("all_reduce", {mine}, rank.attrs("tp").set("op", std::string("max")))[0];
    for (size_t i = 0; i < 20; ++i) {
      const double want =
          std::max({all[0].data<double>()[i], all[1].data<double>()[i], all[2].data<double>()[i]});
      ASSERT_EQ(top.data<double>()[i], want);
    }
  });
}

TEST(Collectives, AllToAllMovesTheSplit) {
  for (const MeshShape& mesh : meshes()) {
    for (const std::string axes : {"tp", "dp,tp"}) {
      Ranks(mesh).run([&](Ranks::Rank& rank) {
        const Tensor whole = random_tensor(DType::f32, {3, 12, 2, 24}, -1, 1);
        const RankGroup group = RankGroup::of(rank.attrs(axes));
        const Tensor in = part_of(whole, 1, 1, group.shape, group.rank());
        const Tensor want = part_of(whole, 3, 1, group.shape, group.rank());
        ir::Attrs attrs = rank.attrs(axes).set("split", int64_t{3}).set("concat", int64_t{1});
        expect_same(rank.eval("all_to_all", {in}, attrs)[0], want);
        attrs.set("split", int64_t{1}).set("concat", int64_t{3});
        expect_same(rank.eval("all_to_all", {want}, attrs)[0], in);
      });
    }
  }
}

TEST(Collectives, RefusesPartsThatAreNoParts) {
  Ranks(MeshShape({{"tp", 2}})).run([&](Ranks::Rank& rank) {
    const auto message = [&](const char* op, const Tensor& x, ir::Attrs attrs) -> std::string {
      try {
        rank.eval(op, {x}, std::move(attrs));
      } catch (const base::Error& e) {
        return e.message();
      }
      return "nothing thrown";
    };
    const Tensor x = random_tensor(DType::f32, {3, 4}, 0, 1);
    const std::string uneven = message(
        "all_gather", x, rank.attrs("tp").set("dim", int64_t{0}).set("extents", std::vector<int64_t>{9}));
    EXPECT_NE(uneven.find("a part of dimension 0 of 9 elements has"), std::string::npos) << uneven;
    const std::string sections =
        message("shard_slice", x, rank.attrs("tp").set("dim", int64_t{1}).set("sections", int64_t{3}));
    EXPECT_NE(sections.find("has no 3 sections"), std::string::npos) << sections;
    ir::Attrs none = rank.attrs("tp").set("dim", int64_t{0});
    none.erase("axes");
    EXPECT_NE(message("all_gather", x, none).find("names the mesh axes"), std::string::npos);
  });
}

/// A collective, and whether its operand and its result have the same value on all ranks.
struct AdjointCase {
  std::string op;
  Dims dims;  ///< of each rank's operand
  ir::Attrs attrs = {};
  bool common_in = false, common_out = false;
};

/// The common loss: <y, weights> summed over all ranks, or of one rank if y is the same on all.
double common_loss(Ranks::Rank& rank, const AdjointCase& c, const ir::Attrs& attrs, const Tensor& x,
                   const Tensor& weights) {
  const Tensor y = rank.eval(c.op, {x}, attrs)[0];
  double sum = 0;
  for (size_t i = 0; i < y.data<double>().size(); ++i) sum += y.data<double>()[i] * weights.data<double>()[i];
  if (c.common_out && rank.mesh.world().rank() != 0) sum = 0;
  rank.mesh.world().all_reduce(comm::as_bytes(std::span(&sum, 1)), {DType::f64, comm::ReduceOp::sum});
  return sum;
}

/// The operand's gradient by the op's rule, computed on this rank.
Tensor adjoint(Ranks::Rank& rank, const AdjointCase& c, const ir::Attrs& attrs, const Tensor& x,
               const Tensor& dy) {
  ir::Graph graph;
  const ValueId in = graph.add_input("x", x.type());
  const ValueId out = graph.add1(table().need(c.op), {in}, attrs);
  std::vector<ValueId> grads(graph.values().size(), ir::kNoValue);
  grads[index(out)] = graph.add_constant(dy);
  grads.resize(graph.values().size(), ir::kNoValue);
  std::vector<char> wanted(graph.values().size(), 0);
  wanted[index(in)] = 1;
  backpropagate(graph, 0, wanted, grads);
  graph.set_outputs({grads[index(in)]}, {"dx"});
  graph.sort();
  return rank.run_graph(graph, {x})[0];
}

void expect_adjoint(Ranks::Rank& rank, const AdjointCase& c) {
  comm::Communicator& world = rank.mesh.world();
  ir::Attrs attrs = rank.attrs("tp");
  for (const auto& [name, value] : c.attrs.items()) attrs.set(name, value);
  const auto seed = [&](bool common) { return common ? 0 : world.rank(); };
  Tensor x = contribution(DType::f64, c.dims, seed(c.common_in), 5);
  const Tensor weights =
      contribution(DType::f64, rank.eval(c.op, {x}, attrs)[0].dims(), seed(c.common_out), 99);
  const Tensor dx = adjoint(rank, c, attrs, x, weights);
  ASSERT_EQ(dx.dims(), x.dims());
  for (int who = 0; who < (c.common_in ? 1 : world.size()); ++who) {
    // Ranks with shorter parts join every evaluation, because all must communicate equally often.
    double elements = static_cast<double>(x.elements());
    world.all_reduce(comm::as_bytes(std::span(&elements, 1)), {DType::f64, comm::ReduceOp::max});
    for (size_t i = 0; i < static_cast<size_t>(elements); ++i) {
      const bool moves = (c.common_in || who == world.rank()) && i < x.mutable_data<double>().size();
      const auto loss_at = [&](double step) {
        if (moves) x.mutable_data<double>()[i] += step;
        const double loss = common_loss(rank, c, attrs, x, weights);
        if (moves) x.mutable_data<double>()[i] -= step;
        return loss;
      };
      const double want = (loss_at(0.5) - loss_at(-0.5));
      if (!moves) continue;
      EXPECT_NEAR(dx.data<double>()[i], want, 1e-9) << c.op << ", rank " << who << ", element " << i;
    }
  }
}

TEST(Collectives, GradientsAreTheAdjointsOfC1) {
  const std::string partial = "partial", replicated = "replicated";
  for (const int ranks : {2, 3, 4}) {
    const auto n = static_cast<int64_t>(ranks);
    const std::vector<AdjointCase> cases{
        {"all_reduce", {3, 2}, {{"grad", replicated}}, false, true},
        {"all_reduce", {3, 2}, {{"grad", partial}}},
        {"gradient_sum", {3, 2}, {}, true, false},
        {"all_gather", {2, 3}, {{"dim", int64_t{1}}, {"grad", partial}}},
        {"all_gather", {2, 3}, {{"dim", int64_t{0}}, {"grad", replicated}}, false, true},
        {"all_gather", {2, 6}, {{"dim", int64_t{1}}, {"sections", int64_t{2}}, {"grad", partial}}},
        {"reduce_scatter", {2, 2 * n}, {{"dim", int64_t{1}}}},
        {"reduce_scatter", {2 * n + 1, 2}, {{"dim", int64_t{0}}}},
        {"shard_slice", {2, 2 * n + 1}, {{"dim", int64_t{1}}}, true, false},
        {"shard_slice", {6 * n, 2}, {{"dim", int64_t{0}}, {"sections", int64_t{3}}}, true, false},
        {"all_to_all", {2, 2 * n}, {{"split", int64_t{1}}, {"concat", int64_t{0}}}},
    };
    for (const AdjointCase& c : cases) {
      SCOPED_TRACE(base::concat(c.op, " {", c.attrs.to_string(), "} on ", ranks, " ranks"));
      Ranks(MeshShape({{"tp", ranks}})).run([&](Ranks::Rank& rank) { expect_adjoint(rank, c); });
    }
  }
}

TEST(Collectives, AMaximumOverRanksHasNoGradient) {
  Ranks(MeshShape({{"tp", 2}})).run([](Ranks::Rank& rank) {
    const Tensor x = contribution(DType::f64, {2}, 0);
    EXPECT_THROW(adjoint(rank, {"all_reduce", {2}}, rank.attrs("tp").set("op", std::string("max")), x, x),
                 base::Error);
  });
}

}  // namespace
}  // namespace trireme::ops::testing
