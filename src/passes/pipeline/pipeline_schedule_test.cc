// The sequences, total times and peaks of training contract C5; schedules of random sizes do not deadlock and
// respect the dependencies.
#include "passes/pipeline/pipeline_flow.h"
#include "passes/pipeline/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "base/error.h"

namespace trireme::passes {
namespace {

using enum PipelineSchedule;

std::vector<std::string> texts(const PipelineOrder& order) {
  std::vector<std::string> lines;
  for (const auto& actions : order.of_stage) lines.push_back(to_string(actions, order.shape.chunks));
  return lines;
}

TEST(PipelineSchedule, OneForwardOneBackwardAsInTheContract) {
  const std::vector<std::string> want{
      "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7", "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
      "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"};
  EXPECT_EQ(texts(make_pipeline_order(one_f_one_b, {.stages = 4, .micro_batches = 8})), want);
  // Interleaved with one chunk: more forwards come early, but the total work is the same.
  EXPECT_EQ(simulate(make_pipeline_order(interleaved, {.stages = 4, .micro_batches = 8})).total, 33.0);
}

TEST(PipelineSchedule, InterleavedAsInTheContract) {
  const std::vector<std::string> want{
      "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
      "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"};
  EXPECT_EQ(texts(make_pipeline_order(interleaved, {.stages = 2, .micro_batches = 4, .chunks = 2})), want);
}

TEST(PipelineSchedule, OthersAsText) {
  EXPECT_EQ(texts(make_pipeline_order(gpipe, {.stages = 2, .micro_batches = 3})),
            (std::vector<std::string>{"F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"}));
  EXPECT_EQ(texts(make_pipeline_order(zero_bubble, {.stages = 2, .micro_batches = 3})),
            (std::vector<std::string>{"F0 F1 Bx0 W0 F2 Bx1 W1 Bx2 W2", "F0 Bx0 F1 Bx1 W0 F2 Bx2 W1 W2"}));
  EXPECT_EQ(texts(make_inference_order({.stages = 2, .micro_batches = 3})),
            (std::vector<std::string>{"F0 F1 F2", "F0 F1 F2"}));
}

TEST(PipelineSchedule, TotalsAndPeaksOfTheContract) {
  // p, m, v, total, and the peak on stage 0, with F = 1 and B = 2 for a whole stage.
  const std::vector<std::tuple<int, int, int, double, int>> cases{
      {4, 8, 1, 33.0, 4},  {4, 8, 2, 28.5, 11},   {8, 64, 1, 213, 8},
      {8, 64, 3, 199, 31}, {8, 32, 2, 106.5, 23}, {4, 16, 4, 50.25, 19}};
  for (const auto& [p, m, v, total, peak] : cases) {
    const auto order = make_pipeline_order(v == 1 ? one_f_one_b : interleaved,
                                           {.stages = p, .micro_batches = m, .chunks = v});
    const PipelineSimulation sim = simulate(order, {.each = {.forward = 1.0 / v, .backward = 2.0 / v}});
    EXPECT_NEAR(sim.total, total, 1e-9) << p << " " << m << " " << v;
    EXPECT_EQ(sim.peak[0], peak) << p << " " << m << " " << v;
    EXPECT_NEAR(sim.bubble, (p - 1.0) / (v * m + p - 1.0), 1e-9);
  }
}

TEST(PipelineSchedule, GroupsThatDoNotDivideReachTheSameBubble) {
  // With a short last group, as the contract describes groups, the first and the third case would deadlock,
  // and the others would take 24 and 123 instead of 19.5 and 109.5.
  for (const auto& [p, m, v] : {std::tuple(5, 7, 2), {4, 5, 2}, {4, 9, 3}, {8, 33, 2}, {2, 5, 2}}) {
    const auto order = make_pipeline_order(interleaved, {.stages = p, .micro_batches = m, .chunks = v});
    const double total = simulate(order, {.each = {.forward = 1.0 / v, .backward = 2.0 / v}}).total;
    EXPECT_NEAR(total, 3.0 * m + 3.0 * (p - 1) / v, 1e-9) << p << " " << m << " " << v;
  }
}

TEST(PipelineSchedule, GPipeHoldsEveryMicroBatchAndHasTheBubbleOf1F1B) {
  const PipelineSimulation sim = simulate(make_pipeline_order(gpipe, {.stages = 4, .micro_batches = 8}));
  EXPECT_EQ(sim.peak, (std::vector<int>{8, 8, 8, 8}));
  EXPECT_EQ(sim.total, 33.0);
}

TEST(PipelineSchedule, ZeroBubbleLosesAThirdOf1F1BInTheSameMemory) {
  for (const auto& [p, m] : {std::pair(4, 8), {8, 64}, {2, 2}, {6, 6}, {3, 20}}) {
    const PipelineShape shape{.stages = p, .micro_batches = m};
    const double ideal = 3.0 * m;
    const PipelineSimulation plain = simulate(make_pipeline_order(one_f_one_b, shape));
    const PipelineSimulation zero = simulate(make_pipeline_order(zero_bubble, shape));
    EXPECT_EQ(plain.total, ideal + 3.0 * (p - 1));
    EXPECT_EQ(zero.total, ideal + (p - 1));
    // Relative to 1F1B, in the contract's terms: beta / 3 with beta = (p-1)/(m+p-1).
    EXPECT_NEAR((zero.total - ideal) / plain.total, (p - 1.0) / (m + p - 1.0) / 3, 1e-12);
    EXPECT_EQ(*std::max_element(zero.peak.begin(), zero.peak.end()), plain.peak[0]);
  }
}

TEST(PipelineSchedule, LatencyAndUnequalPartsCount) {
  const auto order = make_pipeline_order(one_f_one_b, {.stages = 2, .micro_batches = 1});
  EXPECT_EQ(simulate(order, {.each = {}, .parts = {}, .send = 0.5}).total, 1 + 0.5 + 1 + 2 + 0.5 + 2);
  PipelineTimes times{.parts = {{.forward = 3, .backward = 5}, {.forward = 1, .backward = 1}}};
  EXPECT_EQ(simulate(order, times).total, 3 + 1 + 1 + 5);
}

TEST(PipelineSchedule, WaitingInACircleIsAnErrorThatNamesTheStages) {
  PipelineOrder order{.shape = {.stages = 2, .micro_batches = 1}, .of_stage = {}};
  using enum PipelineWork;
  order.of_stage = {{{backward, 0, 0}, {forward, 0, 0}}, {{forward, 0, 0}, {backward, 0, 0}}};
  try {
    simulate(order);
    FAIL() << "no error";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("stage 0 before B0 stage 1 before F0"), std::string::npos)
        << e.what();
  }
  EXPECT_THROW(make_pipeline_order(gpipe, {.stages = 2, .micro_batches = 0}), base::Error);
  EXPECT_THROW(make_pipeline_order(zero_bubble, {.stages = 2, .micro_batches = 2, .chunks = 2}), base::Error);
}

TEST(PipelineFlow, BuffersAreThePeaksOfTheSchedule) {
  const PipelineShape shape{.stages = 4, .micro_batches = 8};
  const auto kept = [](const PipelineOrder& order) {
    std::vector<int> out;
    for (const auto& stage : plan_pipeline_slots(order)) out.push_back(stage[0].kept);
    return out;
  };
  EXPECT_EQ(kept(make_pipeline_order(one_f_one_b, shape)), (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(kept(make_pipeline_order(gpipe, shape)), (std::vector<int>{8, 8, 8, 8}));
  EXPECT_EQ(kept(make_pipeline_order(zero_bubble, shape)), (std::vector<int>{4, 4, 4, 4}));
  EXPECT_EQ(kept(make_inference_order(shape)), (std::vector<int>{1, 1, 1, 1}));
  const auto zero = plan_pipeline_slots(make_pipeline_order(zero_bubble, shape));
  EXPECT_EQ(zero[0][0].late, 1);
  EXPECT_EQ(zero[3][0].late, 4);
  for (const auto& stage : plan_pipeline_slots(make_pipeline_order(one_f_one_b, shape))) {
    EXPECT_EQ(stage[0].in, stage[0].kept + 1);
    EXPECT_EQ(stage[0].out, 2);
    EXPECT_EQ(stage[0].out_gradient, 2);
  }
}

TEST(PipelineFlow, BothEndsOfALinkAgree) {
  const PipelineOrder order =
      make_pipeline_order(interleaved, {.stages = 3, .micro_batches = 7, .chunks = 2});
  for (int r = 0; r < 3; ++r) {
    // What stage r sends must be what the next one reads, in the same order.
    std::vector<std::pair<int, int>> sent, read;
    for (const PipelineTransfer& t : activation_transfers(order, r))
      sent.emplace_back(t.micro_batch, t.chunk * 3 + r + 1);
    for (const PipelineAction& a : order.of_stage[static_cast<size_t>((r + 1) % 3)]) {
      const int part = a.chunk * 3 + (r + 1) % 3;
      if (a.work == PipelineWork::forward && part > 0) read.emplace_back(a.micro_batch, part);
    }
    EXPECT_EQ(sent, read);
  }
  EXPECT_EQ(gradient_transfers(order, 0).size(), 7u);
  EXPECT_EQ(gradient_transfers(order, 1).size(), 14u);
}

/// Every work runs once, and after its dependencies in simulated time.
void expect_sound(const PipelineOrder& order) {
  plan_pipeline_slots(order);  // finds enough buffers, or throws
  const PipelineShape& s = order.shape;
  const PipelineTimes times{.each = {.forward = 1, .backward = 2}, .parts = {}, .send = 0.25};
  const PipelineSimulation sim = simulate(order, times);
  // The end time of (work, micro-batch, part).
  std::map<std::tuple<PipelineWork, int, int>, double> end;
  bool is_split = false;
  for (int r = 0; r < s.stages; ++r) {
    const auto& actions = order.of_stage[static_cast<size_t>(r)];
    for (size_t i = 0; i < actions.size(); ++i) {
      const PipelineAction& a = actions[i];
      is_split |= a.work == PipelineWork::weight_gradient;
      EXPECT_TRUE(end.emplace(std::tuple(a.work, a.micro_batch, a.chunk * s.stages + r),
                              sim.end[static_cast<size_t>(r)][i])
                      .second);
      if (a.work == PipelineWork::forward) continue;
      // The preceding work on this stage is the dependency.
      const PipelineWork before =
          a.work == PipelineWork::weight_gradient ? PipelineWork::input_gradient : PipelineWork::forward;
      EXPECT_TRUE(end.contains({before, a.micro_batch, a.chunk * s.stages + r}));
    }
  }
  ASSERT_EQ(end.size(), static_cast<size_t>((is_split ? 3 : 2) * s.micro_batches * s.parts()));
  const PipelineWork back = is_split ? PipelineWork::input_gradient : PipelineWork::backward;
  for (int m = 0; m < s.micro_batches; ++m) {
    for (int part = 1; part < s.parts(); ++part) {
      EXPECT_LT((end[{PipelineWork::forward, m, part - 1}]), (end[{PipelineWork::forward, m, part}]));
      EXPECT_GT((end[{back, m, part - 1}]), (end[{back, m, part}]));
    }
  }
}

TEST(PipelineSchedule, RandomSizesNeverDeadlockAndKeepTheDependencies) {
  std::mt19937 random(7);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int i = 0; i < 400; ++i) {
    const PipelineShape shape{.stages = draw(1, 8), .micro_batches = draw(1, 20), .chunks = 1};
    for (PipelineSchedule kind : {gpipe, one_f_one_b, zero_bubble})
      expect_sound(make_pipeline_order(kind, shape));
    PipelineShape chunked = shape;
    chunked.chunks = draw(1, 4);
    SCOPED_TRACE(base::concat("p ", shape.stages, " m ", shape.micro_batches, " v ", chunked.chunks));
    expect_sound(make_pipeline_order(interleaved, chunked));
    chunked.group = chunked.stages + draw(0, 3);
    expect_sound(make_pipeline_order(interleaved, chunked));
    plan_pipeline_slots(make_inference_order(chunked));
  }
}

}  // namespace
}  // namespace trireme::passes
