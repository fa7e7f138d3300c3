// Tests runs whose length is up to a request's values: they are left to instances, and end when nobody waits
// for them, when their time is over and when the model closes; and what the warm-up does with such models.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>

#include "ops/table.h"
#include "sched/scheduler.h"

namespace trireme::sched {
namespace {

using tensor::Tensor;

/// A sink whose outcome can be awaited.
struct LoopAnswer {
  std::promise<Outcome> promise;
  std::future<Outcome> future = promise.get_future();
  std::function<void(Outcome&&)> sink() {
    return [this](Outcome&& o) { promise.set_value(std::move(o)); };
  }
};

/// x [n] and a trip count -> x, doubled that many times.
std::shared_ptr<const engine::PreparedModel> looping_model() {
  ir::Attrs attrs{{"captures", int64_t{0}}};
  attrs.set("body", std::make_shared<const ir::Graph>(
                        ir::parse("graph \"b\"\n %0 = input \"i\" : i64[]\n %1 = input \"go\" : bool[]\n"
                                  " %2 = input \"v\" : f32[n]\n %3 = identity(%1)\n %4 = add(%2, %2)\n"
                                  " return %3, %4\n",
                                  ops::table())));
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("n")}});
  const ir::ValueId rounds = g.add_input("rounds", {tensor::DType::i64, {}});
  g.add_output(g.add1(ops::table().need("loop"), {rounds, ir::kNoValue, x}, attrs), "y");
  return std::make_shared<const engine::PreparedModel>(std::move(g));
}

/// x [batch, 1], counted down to 0 until all rows are there: a row of 1e30 never is.
std::shared_ptr<const engine::PreparedModel> counting_model() {
  ir::Attrs attrs{{"captures", int64_t{0}}};
  attrs.set("body", std::make_shared<const ir::Graph>(
                        ir::parse("graph \"b\"\n %0 = input \"i\" : i64[]\n %1 = input \"go\" : bool[]\n"
                                  " %2 = input \"v\" : f32[batch,1]\n %3 = sign(%2)\n %4 = sub(%2, %3)\n"
                                  " %5 = reduce_max(%4) {keepdims=0}\n %6 = sub(%5, %5)\n"
                                  " %7 = greater(%5, %6)\n return %7, %4\n",
                                  ops::table())));
  ir::Graph g;
  const ir::ValueId x =
      g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), tensor::Dim(1)}});
  g.add_output(g.add1(ops::table().need("loop"), {ir::kNoValue, ir::kNoValue, x}, attrs), "y");
  return std::make_shared<const engine::PreparedModel>(std::move(g));
}

SchedulerOptions one_by_one() {
  SchedulerOptions o;
  o.limits = {.max_rows = 1};
  o.padding.is_batched = false;
  o.session.threads = 1;
  o.has_loops = true;
  return o;
}

Request doubled(int64_t rounds, LoopAnswer& answer) {
  return {.inputs = {Tensor::zeros(tensor::DType::f32, {2}), Tensor::scalar(rounds)}, .sink = answer.sink()};
}

/// Waits until the scheduler's first batch runs.
void await_run(const Scheduler& scheduler) {
  while (scheduler.stats().batches == 0) std::this_thread::yield();
}

void expect_error(const Outcome& out, base::ErrorCode code, const std::string& part) {
  ASSERT_TRUE(out.error.has_value());
  EXPECT_EQ(out.error->code(), code) << out.error->message();
  EXPECT_NE(out.error->message().find(part), std::string::npos) << out.error->message();
}

// A model that is quick for one request and endless for another never runs on the thread that reads requests.
TEST(RunLimits, WorkThatDependsOnDataIsLeftToInstances) {
  base::SystemClock clock;
  SchedulerOptions o = one_by_one();
  o.inline_ns = 1000 * base::kNsPerMs;
  Scheduler scheduler(looping_model(), o, clock);
  for (int i = 0; i < 200; ++i) {
    std::thread::id ran;
    LoopAnswer answer;
    Request r = doubled(1, answer);
    r.sink = Sink([&](Outcome&& out) {
      ran = std::this_thread::get_id();
      answer.promise.set_value(std::move(out));
    });
    scheduler.submit(std::move(r));
    ASSERT_FALSE(answer.future.get().error.has_value());
    ASSERT_NE(ran, std::this_thread::get_id()) << i;
  }
}

// After the deadline of its request, a run is told to stop, long before it counts as hung: the instance is
// free again.
TEST(RunLimits, ARunEndsAfterTheDeadlineOfItsRequest) {
  base::SystemClock clock;
  SchedulerOptions o = one_by_one();
  o.has_loops = false;
  o.hang_ns = 600 * base::kNsPerSecond;
  Scheduler scheduler(looping_model(), o, clock);
  const int64_t begin_ns = clock.now_ns();
  LoopAnswer endless, next;
  Request r = doubled(INT64_MAX, endless);
  r.finish_ns = begin_ns + 200 * base::kNsPerMs;
  scheduler.submit(std::move(r));
  expect_error(endless.future.get(), base::ErrorCode::unavailable, "deadline");
  EXPECT_LT(clock.now_ns() - begin_ns, 60 * base::kNsPerSecond);
  scheduler.submit(doubled(3, next));
  EXPECT_FALSE(next.future.get().error.has_value());
}

TEST(RunLimits, LoopsEndAfterTheirTimeAndTheInstanceGoesOn) {
  base::SystemClock clock;
  SchedulerOptions o = one_by_one();
  o.loop_ns = 200 * base::kNsPerMs;
  std::atomic<int> hangs{0};
  o.hang_ns = 600 * base::kNsPerSecond;
  o.on_hang = [&hangs](int, bool) { ++hangs; };
  Scheduler scheduler(looping_model(), o, clock);
  for (int i = 0; i < 3; ++i) {
    LoopAnswer endless, next;
    scheduler.submit(doubled(int64_t{1} << 62, endless));
    scheduler.submit(doubled(3, next));
    expect_error(endless.future.get(), base::ErrorCode::invalid_argument, "rounds");
    EXPECT_FALSE(next.future.get().error.has_value());
  }
  EXPECT_EQ(hangs, 0);
}

TEST(RunLimits, ARunEndsOnceItsClientHasLeft) {
  base::SystemClock clock;
  Scheduler scheduler(looping_model(), one_by_one(), clock);
  std::atomic<bool> has_left{false};
  LoopAnswer endless, next;
  Request r = doubled(INT64_MAX, endless);
  r.cancelled = [&has_left] { return has_left.load(); };
  scheduler.submit(std::move(r));
  await_run(scheduler);
  scheduler.submit(doubled(3, next));
  has_left = true;
  expect_error(endless.future.get(), base::ErrorCode::unavailable, "the client left");
  EXPECT_FALSE(next.future.get().error.has_value());
}

TEST(RunLimits, WhatRunsEndsWithTheScheduler) {
  base::SystemClock clock;
  LoopAnswer endless;
  {
    SchedulerOptions o = one_by_one();
    o.has_loops = false;  // nobody watches its runs
    Scheduler scheduler(looping_model(), o, clock);
    scheduler.submit(doubled(INT64_MAX, endless));
    await_run(scheduler);
  }
  expect_error(endless.future.get(), base::ErrorCode::unavailable, "shutting down");
}

// Requests whose batch ran out of time run again alone, each with a time of its own.
TEST(RunLimits, ALoopThatDoesNotEndFailsAloneInItsBatch) {
  base::SystemClock clock;
  SchedulerOptions o = one_by_one();
  o.padding.is_batched = true;
  o.limits = {.max_rows = 4, .window_ns = 600 * base::kNsPerSecond};
  o.hold_until = 4;
  o.loop_ns = 200 * base::kNsPerMs;
  Scheduler scheduler(counting_model(), o, clock);
  LoopAnswer answers[4];
  std::atomic<bool> has_left{false};
  const float values[4] = {3, 1e30f, 5, 1e30f};
  for (size_t i = 0; i < 4; ++i) {
    Request r{.inputs = {Tensor::from<float>({1, 1}, std::span(&values[i], 1))}, .sink = answers[i].sink()};
    if (i == 3) r.cancelled = [&has_left] { return has_left.load(); };
    scheduler.submit(std::move(r));
  }
  await_run(scheduler);
  has_left = true;  // noticed once it runs alone
  for (const size_t i : {0, 2}) {
    const Outcome out = answers[i].future.get();
    ASSERT_FALSE(out.error.has_value()) << out.error->message();
    EXPECT_EQ(out.outputs[0].data<float>()[0], 0.0f);
  }
  expect_error(answers[1].future.get(), base::ErrorCode::invalid_argument, "rounds");
  expect_error(answers[3].future.get(), base::ErrorCode::unavailable, "the client left");
}

/// x [batch, 1], doubled until the largest is beyond e: zeros never get there.
std::shared_ptr<const engine::PreparedModel> waiting_model() {
  ir::Attrs attrs{{"captures", int64_t{0}}};
  attrs.set("body", std::make_shared<const ir::Graph>(
                        ir::parse("graph \"b\"\n %0 = input \"i\" : i64[]\n %1 = input \"go\" : bool[]\n"
                                  " %2 = input \"v\" : f32[batch,1]\n %3 = add(%2, %2)\n"
                                  " %4 = reduce_max(%3) {keepdims=0}\n %5 = sign(%4)\n %6 = exp(%5)\n"
                                  " %7 = less(%4, %6)\n return %7, %3\n",
                                  ops::table())));
  ir::Graph g;
  const ir::ValueId x =
      g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), tensor::Dim(1)}});
  g.add_output(g.add1(ops::table().need("loop"), {ir::kNoValue, ir::kNoValue, x}, attrs), "y");
  return std::make_shared<const engine::PreparedModel>(std::move(g));
}

/// x [n] -> [n], elements of a table of one: takes nothing but 4 and 5.
std::shared_ptr<const engine::PreparedModel> picking_model() {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {tensor::DType::i64, {tensor::Dim::symbol("n")}});
  const ir::ValueId five = g.add_constant(Tensor::scalar(int64_t{5}));
  const ir::ValueId table = g.add_constant(Tensor::zeros(tensor::DType::f32, {1}));
  const ir::ValueId at = g.add1(ops::table().need("sub"), {x, five});
  g.add_output(g.add1(ops::table().need("gather"), {table, at}, {{"axis", int64_t{0}}}), "y");
  return std::make_shared<const engine::PreparedModel>(std::move(g));
}

// Zeros that nobody gave may be what a loop never ends with: the model starts all the same, on all instances.
TEST(RunLimits, AnEndlessWarmUpThatNobodyAskedForIsEnded) {
  base::SystemClock clock;
  SchedulerOptions o = one_by_one();
  o.instances = 2;
  o.loop_ns = 200 * base::kNsPerMs;
  o.p99_ns = base::kNsPerSecond;
  o.warm_up = {{.example = {Tensor::zeros(tensor::DType::f32, {1, 1})}, .is_made_up = true}};
  Scheduler scheduler(waiting_model(), o, clock);
  EXPECT_NE(scheduler.warm_up_problem().find("loops"), std::string::npos) << scheduler.warm_up_problem();
  LoopAnswer answer;
  const float one = 1;
  scheduler.submit({.inputs = {Tensor::from<float>({1, 1}, std::span(&one, 1))}, .sink = answer.sink()});
  const Outcome out = answer.future.get();
  ASSERT_FALSE(out.error.has_value()) << out.error->message();
  EXPECT_EQ(out.outputs[0].data<float>()[0], 4.0f);
}

TEST(RunLimits, AnEndlessWarmUpThatTheConfigGivesIsAFailure) {
  base::SystemClock clock;
  SchedulerOptions o = one_by_one();
  o.loop_ns = 200 * base::kNsPerMs;
  o.warm_up = {{.example = {Tensor::zeros(tensor::DType::f32, {1, 1})}}};
  EXPECT_THROW(Scheduler(waiting_model(), o, clock), base::Error);
}

// Values that nobody gave may be refused; those that the config gives, and shapes that do not compile, not.
TEST(RunLimits, AModelServesThatRefusesZeros) {
  base::SystemClock clock;
  SchedulerOptions o = one_by_one();
  o.has_loops = false;
  const Tensor zeros = Tensor::zeros(tensor::DType::i64, {2});
  o.warm_up = {{.example = {zeros}, .is_made_up = true}, {.example = {zeros}, .is_made_up = true}};
  Scheduler scheduler(picking_model(), o, clock);
  EXPECT_NE(scheduler.warm_up_problem().find("out of range"), std::string::npos);
  LoopAnswer answer;
  const int64_t fives[2] = {5, 5};
  scheduler.submit({.inputs = {Tensor::from<int64_t>({2}, std::span(fives))}, .sink = answer.sink()});
  EXPECT_FALSE(answer.future.get().error.has_value());
  o.warm_up[1].is_made_up = false;
  EXPECT_THROW(Scheduler(picking_model(), o, clock), base::Error);
  o.warm_up = {{.example = {Tensor::zeros(tensor::DType::f32, {2})}, .is_made_up = true}};
  EXPECT_THROW(Scheduler(waiting_model(), o, clock), base::Error);
}

}  // namespace
}  // namespace trireme::sched
