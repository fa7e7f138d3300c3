// A model on several ranks returns the same results as on one; a lost rank fails the call that needs it, and
// the next call starts new ranks.
#include <gtest/gtest.h>

#include <thread>

#include "base/rng.h"
#include "comm/local.h"
#include "engine/ranks/sharded_session.h"
#include "engine/session/session.h"
#include "model/zoo/resnet.h"
#include "model/zoo/zoo.h"
#include "tests/test_device.h"

namespace trireme::engine {
namespace {

using tensor::DType;
using tensor::Tensor;

Tensor tokens(tensor::Dims dims, int64_t below, uint64_t seed) {
  Tensor t = Tensor::empty(DType::i64, std::move(dims));
  base::Rng rng(seed);
  for (int64_t& v : t.mutable_data<int64_t>())
    v = static_cast<int64_t>(rng.below(static_cast<uint64_t>(below)));
  return t;
}

Tensor noise(tensor::Dims dims, uint64_t seed) {
  Tensor t = Tensor::empty(DType::f32, std::move(dims));
  base::Rng rng(seed);
  for (float& v : t.mutable_data<float>()) v = static_cast<float>(rng.normal());
  return t;
}

/// Weights are large enough that every path affects the results.
std::shared_ptr<const PreparedModel> prepared(const std::string& network,
                                              const std::vector<std::string>& options) {
  model::Model m = model::zoo::build(network, options);
  uint64_t seed = 0;
  for (size_t i = 0; i < m.graph.values().size(); ++i) {
    ir::Value& v = m.graph.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind != ir::ValueKind::param || v.type.dtype != DType::f32 || v.data.rank() != 2) continue;
    Tensor data = noise(v.data.dims(), ++seed);
    for (float& x : data.mutable_data<float>()) x *= 0.2f;
    v.data = data;
  }
  return std::make_shared<const PreparedModel>(std::move(m.graph));
}

std::shared_ptr<const PreparedModel> llama(int kv_heads = 4) {
  return prepared("llama", {"vocabulary=37", "width=32", "layers=4", "heads=4", "inner=48",
                            base::concat("kv_heads=", kv_heads)});
}

double distance(const Tensor& a, const Tensor& b) {
  if (a.dims() != b.dims()) return 1e30;
  const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
  double worst = 0, size = 1e-6;
  for (size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, std::abs(x[i] - y[i]));
    size = std::max(size, std::abs(y[i]));
  }
  return worst / size;
}

/// Random inputs of `rows` rows (and tokens).
std::vector<Tensor> inputs_of(const ir::Graph& graph, int64_t rows, int64_t length) {
  std::vector<Tensor> inputs;
  for (const ir::ValueId id : graph.inputs()) {
    tensor::Dims dims;
    for (const tensor::Dim& d : graph.type(id).shape.dims())
      dims.push_back(d.is_static() ? d.value() : dims.empty() ? rows : length);
    const bool is_float = graph.type(id).dtype == DType::f32;
    inputs.push_back(is_float                              ? noise(dims, 5)
                     : graph.value(id).name == "input_ids" ? tokens(dims, 37, 6)
                                                           : tokens(dims, 1, 7));
    if (graph.value(id).name == "attention_mask") {
      for (int64_t& v : inputs.back().mutable_data<int64_t>()) v = 1;
    }
  }
  return inputs;
}

base::ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& e) {
    return e.code();
  }
  return base::ErrorCode::internal;
}

void expect_same_answers(const std::shared_ptr<const PreparedModel>& model, const passes::Strategy& strategy,
                         double tolerance = 2e-5) {
  const std::string on = tests::device_under_test();
  Session one(model, {.device = on, .threads = 1}),
      many(model, {.device = on, .threads = strategy.world(), .strategy = strategy});
  for (const int64_t rows : {1, 3, 1}) {
    const std::vector<Tensor> inputs = inputs_of(model->graph(), rows, 6 + rows);
    const std::vector<Tensor> want = one.run(inputs), got = many.run(inputs);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_LE(distance(got[i], want[i]), tolerance) << "output " << i;
  }
  EXPECT_EQ(many.sharded()->restarts(), 0);
}

TEST(ShardedSession, TensorParallelAnswersAsOneRank) {
  expect_same_answers(llama(), {.tp = 2});
  expect_same_answers(llama(), {.tp = 4});
  expect_same_answers(llama(2), {.tp = 4});  // fewer key/value heads than ranks
}

TEST(ShardedSession, StagesAnswerAsOneRank) {
  expect_same_answers(llama(), {.pp = 2});
  expect_same_answers(llama(), {.pp = 4});
}

TEST(ShardedSession, StagesOfTensorParallelRanksAnswerAsOneRank) {
  expect_same_answers(llama(), {.tp = 2, .pp = 2});
}

TEST(ShardedSession, ConvolutionalNetworksRunInStages) {
  expect_same_answers(prepared("resnet18", {"size=32", "classes=10"}), {.pp = 3});
}

TEST(ShardedSession, BatchesGoThroughTheStagesInMicroBatches) {
  const auto model = llama();
  RankModel of_two(model, {.threads = 1, .strategy = {.pp = 2}}, 1, "cpu");
  const auto micro_batches = [&](int64_t rows) { return of_two.program_for({{rows, 8}})->micro_batches; };
  EXPECT_EQ(micro_batches(1), 1);
  EXPECT_EQ(micro_batches(3), 3);
  EXPECT_EQ(micro_batches(8), 4);
  EXPECT_EQ(micro_batches(10), 2);
  Session one(model, {.threads = 1});
  for (const int pp : {2, 3, 4}) {
    Session many(model, {.threads = pp, .strategy = {.pp = pp}});
    for (const int64_t rows : {8, 12}) {
      const std::vector<Tensor> inputs = inputs_of(model->graph(), rows, 6);
      EXPECT_LE(distance(many.run(inputs)[0], one.run(inputs)[0]), 2e-5)
          << pp << " stages, " << rows << " rows";
    }
  }
}

TEST(ShardedSession, ResNet152RunsOnFourStages) {
  const auto model = std::make_shared<const PreparedModel>(model::zoo::random_resnet(152, 1, 32, 10).graph);
  Session one(model, {.threads = 1}), many(model, {.threads = 4, .strategy = {.pp = 4}});
  const std::vector<Tensor> inputs{noise({4, 3, 32, 32}, 9)};
  EXPECT_LE(distance(many.run(inputs)[0], one.run(inputs)[0]), 2e-5);
}

TEST(ShardedSession, AStageThatIsLostOrRefusesItsInputFailsOneCall) {
  const auto model = llama();
  Session one(model, {.threads = 1}), many(model, {.threads = 3, .strategy = {.pp = 3}});
  const std::vector<Tensor> inputs = inputs_of(model->graph(), 4, 8);
  const Tensor want = one.run(inputs)[0];
  EXPECT_LE(distance(many.run(inputs)[0], want), 2e-5);
  many.sharded()->lose(2);
  EXPECT_EQ(code_of([&] { many.run(inputs); }), base::ErrorCode::unavailable);
  EXPECT_LE(distance(many.run(inputs)[0], want), 2e-5);
  std::vector<Tensor> bad = inputs;
  bad[0] = tokens({4, 8}, 37, 1);
  bad[0].mutable_data<int64_t>()[13] = 99;
  EXPECT_EQ(code_of([&] { many.run(bad); }), base::ErrorCode::invalid_argument);
  EXPECT_LE(distance(many.run(inputs)[0], want), 2e-5);
}

TEST(ShardedSession, WeightsAreShared) {
  // Each rank holds half of the split weights; programs for other shapes add none.
  const auto model = llama();
  Session many(model, {.threads = 2, .strategy = {.tp = 2}});
  const auto bytes = [&](int64_t rows) {
    std::vector<tensor::Dims> shapes;
    for (const Tensor& t : inputs_of(model->graph(), rows, 8)) shapes.push_back(t.dims());
    return many.prepare(shapes).memory.constant_bytes;
  };
  Session one(model, {.threads = 1});
  std::vector<tensor::Dims> shapes;
  for (const Tensor& t : inputs_of(model->graph(), 1, 8)) shapes.push_back(t.dims());
  EXPECT_LT(static_cast<double>(bytes(1)),
            0.6 * static_cast<double>(one.prepare(shapes).memory.constant_bytes));
  EXPECT_NEAR(static_cast<double>(bytes(1)), static_cast<double>(bytes(2)), 1024);  // masks and positions
}

TEST(ShardedSession, ALostRankFailsOneCall) {
  const auto model = llama();
  Session one(model, {.threads = 1}), many(model, {.threads = 2, .strategy = {.tp = 2}});
  const std::vector<Tensor> inputs = inputs_of(model->graph(), 2, 8);
  const std::vector<Tensor> want = one.run(inputs);
  for (int round = 1; round <= 3; ++round) {
    EXPECT_LE(distance(many.run(inputs)[0], want[0]), 2e-5);
    many.sharded()->lose(1);
    EXPECT_EQ(code_of([&] { many.run(inputs); }), base::ErrorCode::unavailable);
    EXPECT_LE(distance(many.run(inputs)[0], want[0]), 2e-5);
    EXPECT_EQ(many.sharded()->restarts(), round);
  }
}

TEST(ShardedSession, WrongInputsAreTheCallersAlone) {
  const auto model = llama();
  Session many(model, {.threads = 2, .strategy = {.tp = 2}});
  std::vector<Tensor> inputs = inputs_of(model->graph(), 2, 8);
  EXPECT_EQ(code_of([&] { many.run({}); }), base::ErrorCode::invalid_argument);
  EXPECT_EQ(many.sharded()->restarts(), 0);
  std::vector<Tensor> bad = inputs;
  bad[0] = tokens({2, 8}, 37, 1);
  bad[0].mutable_data<int64_t>()[3] = 99;
  EXPECT_EQ(code_of([&] { many.run(bad); }), base::ErrorCode::invalid_argument);
  EXPECT_NO_THROW(many.run(inputs));
}

/// Wide enough that each rank's part of a matrix consists of whole groups.
std::shared_ptr<const PreparedModel> wide_llama() {
  return prepared("llama", {"vocabulary=37", "width=128", "layers=2", "heads=4", "inner=256", "kv_heads=4"});
}

const passes::Strategy kSpreads[] = {{.tp = 2}, {.pp = 2}, {.tp = 2, .pp = 2}, {.tp = 4}};

TEST(ShardedSession, EveryPrecisionAnswersAsOneRank) {
  const auto model = wide_llama();
  const std::vector<Tensor> inputs = inputs_of(model->graph(), 3, 8);
  for (const auto& [precision, tolerance] :
       {std::pair(passes::Precision::bf16, 0.03), std::pair(passes::Precision::f16, 0.004),
        std::pair(passes::Precision::fp8, 0.2)}) {
    Session exact(model, {.threads = 1}),
        one(model, {.threads = 1, .strategy = {.precision = {.compute = precision}}});
    const Tensor want = one.run(inputs)[0];
    EXPECT_GT(distance(want, exact.run(inputs)[0]), 1e-5) << "nothing was rounded";
    for (const passes::Strategy& strategy : kSpreads) {
      passes::Strategy low = strategy;
      low.precision.compute = precision;
      Session many(model, {.threads = strategy.world(), .strategy = low});
      // Stages split no sums; tensor-parallel ranks round partial sums separately. In fp8 the last product of
      // each stage keeps 16 bits, as the last product of a model does.
      const bool is_exact = strategy.tp == 1 && precision != passes::Precision::fp8;
      const double most = is_exact ? 0 : tolerance;
      EXPECT_LE(distance(many.run(inputs)[0], want), most)
          << static_cast<int>(precision) << ", tp " << strategy.tp << ", pp " << strategy.pp;
    }
  }
}

TEST(ShardedSession, RanksStoreTheirPartsOfTheWeightsAsOneRankStoresTheWhole) {
  const auto model = wide_llama();
  for (const passes::WeightBits bits : {passes::WeightBits::int8, passes::WeightBits::int4}) {
    const passes::WeightOptions weights{.weights = bits, .weight_group = 32, .least_elements = 1};
    const auto whole = std::make_shared<const PreparedModel>(model->graph(), passes::PassOptions{},
                                                             passes::Strategy{.weights = weights});
    ASSERT_GT(whole->weights().stored(), 10u);
    Session one(whole, {.threads = 1});
    const std::vector<Tensor> inputs = inputs_of(model->graph(), 2, 8);
    const Tensor want = one.run(inputs)[0];
    for (passes::Strategy strategy : kSpreads) {
      strategy.weights = weights;
      const auto parts =
          std::make_shared<const PreparedModel>(model->graph(), passes::PassOptions{}, strategy);
      Session many(parts, {.threads = strategy.world(), .strategy = strategy});
      EXPECT_LE(distance(many.run(inputs)[0], want), strategy.tp == 1 ? 0 : 2e-5)
          << "tp " << strategy.tp << ", pp " << strategy.pp;
      RankModel rank(parts, {.threads = 1, .strategy = strategy}, 0, "cpu");
      const auto program = rank.program_for({{2, 8}}), other = rank.program_for({{4, 8}});
      EXPECT_GT(rank.stored().stored(), 0u);
      const auto stored_weights = [](const RankProgram& p) {
        std::vector<const std::byte*> at;
        for (const compile::Slot& s : p.program->slots) {
          if (s.kind == compile::SlotKind::constant && s.dtype == DType::u8) at.push_back(s.constant.raw());
        }
        return at;
      };
      EXPECT_FALSE(stored_weights(*program).empty());
      EXPECT_EQ(stored_weights(*program), stored_weights(*other)) << "stored once for all sizes";
    }
  }
}

TEST(ShardedSession, KeepsAsManyProgramsAsItMay) {
  const auto model = llama();
  Session many(model, {.threads = 2, .max_programs = 2, .strategy = {.tp = 2}}), one(model, {.threads = 1});
  for (const int64_t rows : {1, 2, 3, 1, 4, 2, 1}) {
    const std::vector<Tensor> inputs = inputs_of(model->graph(), rows, 5);
    EXPECT_LE(distance(many.run(inputs)[0], one.run(inputs)[0]), 2e-5);
  }
}

TEST(ShardedSession, RanksOfAJobFollowTheFirst) {
  const auto model = llama();
  const std::vector<Tensor> inputs = inputs_of(model->graph(), 2, 8);
  Session one(model, {.threads = 1});
  const std::vector<Tensor> want = one.run(inputs);
  const passes::Strategy strategy{.tp = 2, .pp = 2};
  comm::LocalWorld world(4);
  world.run([&](comm::Communicator& all) {
    comm::Mesh mesh(all, strategy.mesh());
    const SessionOptions options{.strategy = strategy, .mesh = &mesh};
    if (all.rank() != 0) return follow(model, options);
    Session leader(model, options);
    for (int i = 0; i < 3; ++i)
      base::check(distance(leader.run(inputs)[0], want[0]) <= 2e-5, "answers differ");
  });
}

}  // namespace
}  // namespace trireme::engine
