// Many ranks on devices: training has the losses of the CPU, and models on several ranks return the CPU's
// results, in every order of execution that the events of the streams allow.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>

#include "base/rng.h"
#include "comm/local.h"
#include "engine/ranks/sharded_session.h"
#include "engine/session/session.h"
#include "engine/train/train_session.h"
#include "model/loss.h"
#include "model/zoo/zoo.h"
#include "tests/test_device.h"

namespace trireme::engine {
namespace {

using passes::PipelineSchedule;
using passes::Strategy;
using tensor::DType;
using tensor::Tensor;

/// Sets the order in which streams of emulated devices run, during its lifetime.
class Order {
 public:
  explicit Order(const char* order) { ::setenv("TRIREME_EMULATED_ORDER", order, 1); }
  ~Order() { ::unsetenv("TRIREME_EMULATED_ORDER"); }
};

/// Emulated devices, one for each rank; with a GPU, all ranks share it.
class RankDevices : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = tests::cuda_device();
    if (!device) GTEST_SKIP() << tests::kNoGpu;
    device_ = *device == "emulated" ? "emulated" : "cuda:shared";
    one_ = *device;
  }
  std::string device_, one_;  ///< for several ranks, and for one
};

/// Tests that need emulated devices.
class EmulatedRankDevices : public RankDevices {
 protected:
  void SetUp() override {
    if (tests::cuda_device() != "emulated")
      GTEST_SKIP() << "emulated devices are in builds without the toolkit";
    RankDevices::SetUp();
  }
};

ir::Graph narrow_gpt(bool with_loss, int vocabulary = 32) {
  const std::vector<std::string> options{base::concat("vocabulary=", vocabulary),
                                         "positions=8",
                                         "width=16",
                                         "layers=4",
                                         "heads=2",
                                         "dropout=0.1"};
  ir::Graph g = model::zoo::build("gpt2", options).graph;
  if (with_loss) model::add_loss(g);
  g.sort();
  return g;
}

Tensor token_rows(uint64_t stream, int64_t rows) {
  Tensor ids = Tensor::empty(DType::i64, {rows, 8});
  base::Rng rng(3, stream);
  for (int64_t& id : ids.mutable_data<int64_t>()) id = static_cast<int64_t>(rng.uniform() * 32);
  return ids;
}

constexpr size_t kRankMicroBatches = 4;

std::vector<double> losses_and_norms(TrainSession& session, int dp) {
  std::vector<double> out;
  const size_t own = kRankMicroBatches / static_cast<size_t>(dp);
  for (int step = 0; step < 2; ++step) {
    std::vector<Feeds> feeds;
    for (size_t i = 0; i < own; ++i) {
      const auto place = static_cast<uint64_t>(step) * kRankMicroBatches + session.own_micro_batch(i, own);
      feeds.push_back({token_rows(2 * place, 2), token_rows(2 * place + 1, 2)});
    }
    const StepResult r = session.step(
        feeds, {.lr = 0.01f, .step = step + 1, .seed = 7, .draw = step, .loss_weight = 1.0f / 64});
    out.insert(out.end(), {r.loss_sum, r.grad_norm});
  }
  return out;
}

/// Losses and gradient norms of two steps on `device`; a single rank if the strategy has one.
std::vector<double> train_ranks(const ir::Graph& graph, const Strategy& strategy, const std::string& device) {
  TrainOptions options;
  options.optimizer.clip_norm = 0.5;
  options.threads = 1;
  options.device = device;
  options.strategy = strategy;
  options.strategy.bucket_mb = 0.01;
  if (strategy.world() == 1) {
    TrainSession session(graph, options);
    return losses_and_norms(session, 1);
  }
  std::vector<double> got;
  comm::LocalWorld(strategy.world()).run([&](comm::Communicator& comm) {
    TrainOptions own = options;
    comm::Mesh mesh(comm, own.strategy.mesh());
    own.mesh = &mesh;
    TrainSession session(graph, own);
    const std::vector<double> mine = losses_and_norms(session, strategy.dp);
    if (comm.rank() == 0) got = mine;
  });
  return got;
}

void expect_numbers_near(const std::vector<double>& want, const std::vector<double>& got,
                         const std::string& what) {
  ASSERT_EQ(want.size(), got.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-4 * std::abs(want[i])) << what;
}

TEST_F(RankDevices, TrainingFollowsTheCpusLosses) {
  const ir::Graph graph = narrow_gpt(true);
  const std::vector<double> want = train_ranks(graph, {}, "cpu");
  const std::vector<std::pair<const char*, Strategy>> layouts{
      {"zero 3", {.dp = 2, .zero = 3}},
      {"tensor", {.tp = 2}},
      {"stages", {.pp = 2}},
      {"zero bubble", {.pp = 2, .schedule = PipelineSchedule::zero_bubble}},
      {"ring", {.pp = 2, .schedule = PipelineSchedule::interleaved, .chunks = 2}},
      {"all", {.dp = 2, .tp = 2, .pp = 2, .zero = 1}}};
  for (const auto& [what, strategy] : layouts)
    expect_numbers_near(want, train_ranks(graph, strategy, device_), what);
}

/// The number of pads from 500 to 512 in the steps of two ranks that split the scores.
int padded_parts(const ir::Graph& graph, const std::string& device) {
  std::atomic<int> count{0};
  comm::LocalWorld(2).run([&](comm::Communicator& comm) {
    TrainOptions options;
    options.threads = 1;
    options.device = device;
    options.strategy = {.tp = 2};
    comm::Mesh mesh(comm, options.strategy.mesh());
    options.mesh = &mesh;
    TrainSession session(graph, options);
    for (const compile::Step& step : session.programs({{2, 8}, {2, 8}}, 1)[0]->steps)
      count += step.attrs.find("padded=12") != std::string::npos;
  });
  return count;
}

TEST_F(RankDevices, ScoresThatRanksSplitArePaddedPartByPart) {
  const ir::Graph graph = narrow_gpt(true, 1000);
  EXPECT_EQ(padded_parts(graph, device_), 4);  // the loss and its gradient on each rank
  const std::vector<double> want = train_ranks(graph, {}, "cpu");
  const std::vector<std::pair<const char*, Strategy>> layouts{
      {"tensor", {.tp = 2}}, {"zero 3", {.dp = 2, .zero = 3}}, {"both", {.dp = 2, .tp = 2, .zero = 1}}};
  for (const auto& [what, strategy] : layouts)
    expect_numbers_near(want, train_ranks(graph, strategy, device_), what);
}

TEST_F(RankDevices, AStageMayHoldNothingButTheTiedHead) {
  const ir::Graph graph = narrow_gpt(true, 1000);  // so heavy a head that its stage has no layers
  expect_numbers_near(train_ranks(graph, {}, "cpu"), train_ranks(graph, {.pp = 2}, "cpu"), "stages");
  expect_numbers_near(train_ranks(graph, {}, "cpu"), train_ranks(graph, {.pp = 2}, device_),
                      "stages on devices");
}

TEST_F(EmulatedRankDevices, EveryOrderOfTheStreamsGivesTheSameBits) {
  const ir::Graph graph = narrow_gpt(true);
  const Strategy strategy{.dp = 2, .pp = 2, .zero = 1};
  const std::vector<double> want = train_ranks(graph, strategy, "emulated");
  for (const char* order : {"late", "early", "shuffled:1"}) {
    const Order held(order);
    EXPECT_EQ(train_ranks(graph, strategy, "emulated"), want) << order;
  }
}

TEST_F(RankDevices, StagedThroughTheHostGivesTheSameBits) {
  const ir::Graph graph = narrow_gpt(true);
  const Strategy strategy{.dp = 2, .pp = 2, .zero = 2};
  const std::vector<double> want = train_ranks(graph, strategy, device_);
  ::setenv("TRIREME_DEVICE_LINK", "staged", 1);
  const std::vector<double> got = train_ranks(graph, strategy, device_);
  ::unsetenv("TRIREME_DEVICE_LINK");
  EXPECT_EQ(got, want);
}

TEST_F(EmulatedRankDevices, RanksThatOutnumberDevicesAreRefusedUnlessTheyMayShare) {
  const ir::Graph graph = narrow_gpt(true);
  ::setenv("TRIREME_EMULATED_DEVICES", "1", 1);
  try {
    train_ranks(graph, {.dp = 2}, "emulated");
    ADD_FAILURE() << "nothing thrown";
  } catch (const base::Error& e) {
    EXPECT_NE(e.message().find("2 ranks on this machine, which shows 1 devices"), std::string::npos)
        << e.message();
  }
  EXPECT_EQ(train_ranks(graph, {.dp = 2}, "emulated:shared").size(), 4u);
  ::unsetenv("TRIREME_EMULATED_DEVICES");
}

TEST_F(RankDevices, EvaluationReadsTheWeightsWhereTrainingHoldsThem) {
  TrainOptions options;
  options.threads = 1;
  options.device = one_;
  TrainSession session(narrow_gpt(true), options);
  const Feeds feeds{token_rows(1, 2), token_rows(2, 2)};
  session.step(feeds, {.lr = 0.01f, .loss_weight = 1.0f / 16});
  const ir::Graph trained = session.trained_graph();
  const auto loss = [&](Session& on) { return on.run({feeds[0], feeds[1]})[0].to_doubles()[0]; };
  const auto lent = std::make_shared<const PreparedModel>(trained);
  session.lend_weights(*lent);
  const auto copied = std::make_shared<const PreparedModel>(trained);
  Session reader(lent, {.device = one_, .threads = 1}), other(copied, {.device = one_, .threads = 1});
  const double before = loss(reader);
  EXPECT_EQ(before, loss(other));
  session.step(feeds, {.lr = 0.01f, .step = 2, .draw = 1, .loss_weight = 1.0f / 16});
  EXPECT_NE(loss(reader), before) << "the memory is that of training";
  EXPECT_EQ(loss(other), before);
}

TEST_F(RankDevices, ModelsOfSeveralRanksAnswerAsTheCpu) {
  const auto model = std::make_shared<const PreparedModel>(narrow_gpt(false));
  Session cpu(model, {.threads = 1});
  for (const Strategy& strategy : {Strategy{.tp = 2}, Strategy{.pp = 2}, Strategy{.tp = 2, .pp = 2}}) {
    Session many(model, {.device = device_, .threads = strategy.world(), .strategy = strategy});
    for (const int64_t rows : {1, 4, 4}) {
      const std::vector<Tensor> inputs{token_rows(static_cast<uint64_t>(rows), rows)};
      const std::vector<double> want = cpu.run(inputs)[0].to_doubles(),
                                got = many.run(inputs)[0].to_doubles();
      ASSERT_EQ(want.size(), got.size());
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4) << "rows " << rows;
    }
  }
}

}  // namespace
}  // namespace trireme::engine
