// Tests the dispatcher of a model's threads, with one thread and a fake clock: who is told what, and when.
#include "sched/dispatcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/session/session.h"
#include "ops/table.h"

namespace trireme::sched {
namespace {

using tensor::Tensor;

/// y = sigmoid(x), x [batch, 2].
std::shared_ptr<const engine::PreparedModel> tiny_model() {
  ir::Graph g;
  const auto x = g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), tensor::Dim(2)}});
  g.add_output(g.add1(ops::table().need("sigmoid"), {x}), "y");
  return std::make_shared<const engine::PreparedModel>(std::move(g));
}

class DispatcherTest : public testing::Test {
 protected:
  DispatcherTest() {
    options_.limits.max_rows = 8;
    options_.instances = 1;
    options_.session.threads = 1;
  }

  void open(bool may_share) {
    session_ = std::make_unique<engine::Session>(tiny_model(), options_.session);
    runner_ = std::make_unique<BatchRunner>(*session_, options_.padding);
    dispatcher_ = std::make_unique<Dispatcher>(options_, clock_, nullptr);
    dispatcher_->opened(instance(), {.runner = *runner_, .may_share = may_share});
  }
  Instance& instance() { return dispatcher_->instance(0); }

  /// A request whose outcome is appended to told_ under this name.
  Request request(const std::string& name) {
    Request r{.inputs = {Tensor::from<float>({1, 2}, {0, 1})}, .rows = 1};
    r.timing.enqueued_ns = clock_.now_ns();
    r.sink = Sink([this, name](Outcome&& o) {
      told_.push_back(name + ": " + (o.error ? o.error->message() : std::string("done")));
    });
    return r;
  }
  /// Teaches the dispatcher that a batch of one row takes a microsecond.
  void teach_quick() {
    const Request r = request("none");
    for (int i = 0; i < 3; ++i) {
      const Timing timing{.started_ns = 0, .finished_ns = base::kNsPerUs, .padded_rows = 1};
      dispatcher_->computed(instance(), timing, {.group = group_key(r.inputs, options_.padding)});
    }
  }

  base::FakeClock clock_{base::kNsPerSecond};
  SchedulerOptions options_;
  std::unique_ptr<engine::Session> session_;
  std::unique_ptr<BatchRunner> runner_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::vector<std::string> told_;
};

TEST_F(DispatcherTest, WhoHasLeftIsToldEvenWhereTheOneThatFindsItRunsAtOnce) {
  options_.inline_ns = base::kNsPerMs;
  options_.max_queue = 1;
  open(true);
  teach_quick();
  Request first = request("first"), second = request("second"), third = request("third");
  ASSERT_EQ(dispatcher_->submit(first), &instance());  // runs on this thread
  bool has_left = false;
  second.cancelled = [&has_left] { return has_left; };
  EXPECT_EQ(dispatcher_->submit(second), nullptr);  // waits
  EXPECT_FALSE(dispatcher_->ran_here(instance(), 0, nullptr));
  dispatcher_->told_here(false);
  has_left = true;
  clock_.advance(base::kNsPerSecond);
  third.timing.enqueued_ns = clock_.now_ns();
  ASSERT_EQ(dispatcher_->submit(third), &instance());  // the full queue was swept and is empty now
  EXPECT_EQ(told_, std::vector<std::string>{"second: the client left"});
  EXPECT_EQ(dispatcher_->stats().cancelled, 1U);
  EXPECT_EQ(dispatcher_->stats().accepted, 3U);
}

TEST_F(DispatcherTest, AFullQueueRefusesAndALateRequestIsToldByWhoAsksForABatch) {
  options_.max_queue = 2;
  open(false);
  std::vector<Request> requests;
  for (const char* name : {"late", "in time", "one too many"}) requests.push_back(request(name));
  requests[0].deadline_ns = clock_.now_ns() + base::kNsPerMs;
  for (Request& r : requests) EXPECT_EQ(dispatcher_->submit(r), nullptr);
  EXPECT_EQ(told_, std::vector<std::string>{"one too many: Exceeds maximum queue size"});
  clock_.advance(base::kNsPerSecond);
  const std::vector<Request> batch = dispatcher_->next_batch(instance());
  EXPECT_EQ(batch.size(), 1U);
  ASSERT_EQ(told_.size(), 2U);
  EXPECT_EQ(told_[1], "late: Request timeout expired");
  dispatcher_->finish(instance(), batch.size());
  const SchedulerStats stats = dispatcher_->stats();
  EXPECT_EQ(stats.refused, 1U);
  EXPECT_EQ(stats.expired, 1U);
  EXPECT_EQ(stats.batches, 1U);
}

// A thread that waits a moment for an instance, without the lock, may find the queue closed afterwards.
TEST_F(DispatcherTest, NobodyWaitsInAQueueThatWasClosedMeanwhile) {
  options_.inline_ns = base::kNsPerMs;
  open(true);
  for (int round = 0; round < 200; ++round) {
    dispatcher_ = std::make_unique<Dispatcher>(options_, clock_, nullptr);
    dispatcher_->opened(instance(), {.runner = *runner_, .may_share = true});
    teach_quick();
    told_.clear();
    Request first = request("first"), second = request("second");
    ASSERT_EQ(dispatcher_->submit(first), &instance());
    std::atomic<bool> is_ready{false}, begins{false};
    std::thread closes([&] {
      is_ready = true;
      while (!begins.load()) {
      }
      dispatcher_->close();
    });
    while (!is_ready.load()) std::this_thread::yield();
    begins = true;
    EXPECT_EQ(dispatcher_->submit(second), nullptr);
    closes.join();
    EXPECT_EQ(dispatcher_->stats().waiting, 0U) << round;
    EXPECT_EQ(told_, std::vector<std::string>{"second: the server is shutting down"}) << round;
    dispatcher_->ran_here(instance(), 0, nullptr);
    dispatcher_->told_here(false);
  }
}

// Every request has a deadline, so what is refused is all that could show that the refusal is wrong.
TEST_F(DispatcherTest, WhatWasSlowOnceDoesNotRefuseDeadlinesForGood) {
  open(false);
  const auto submit = [&](const std::string& name, int64_t within_ms) {
    Request r = request(name);
    if (within_ms > 0) r.finish_ns = clock_.now_ns() + within_ms * base::kNsPerMs;
    dispatcher_->submit(r);
    return std::exchange(told_, {}).empty();  // it waits
  };
  const uint64_t group = group_key(request("none").inputs, options_.padding);
  const auto run = [&](int64_t took_ms) {
    const size_t waited = dispatcher_->stats().waiting;
    const int64_t start_ns = clock_.now_ns();
    const std::vector<Request> batch = dispatcher_->next_batch(instance());
    EXPECT_EQ(batch.size(), waited);
    clock_.advance(took_ms * base::kNsPerMs);
    dispatcher_->ran(instance(), group, 1, start_ns);
    dispatcher_->finish(instance(), batch.size());
  };
  EXPECT_TRUE(submit("compiles", 0));
  run(500);
  EXPECT_TRUE(submit("trial", 200));
  EXPECT_FALSE(submit("another", 200)) << "one at a time";
  run(5);
  EXPECT_TRUE(submit("usual", 200));
  EXPECT_TRUE(submit("another", 200));
  dispatcher_->finish(instance(), dispatcher_->next_batch(instance()).size());
  // A slow time, and requests that it rightly refuses.
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(submit("patient", 0));
    run(400);
  }
  EXPECT_FALSE(submit("early", 200));
  clock_.advance(4 * base::kNsPerSecond);
  EXPECT_FALSE(submit("early", 200));
  clock_.advance(4 * base::kNsPerSecond);
  EXPECT_TRUE(submit("trial", 200));
  EXPECT_FALSE(submit("another", 200));
  run(5);
  EXPECT_TRUE(submit("usual", 20));
  dispatcher_->close();
}

TEST_F(DispatcherTest, TheKeeperAnswersForABatchThatHangsAndForThoseBehindIt) {
  options_.hang_ns = base::kNsPerSecond;
  std::vector<bool> hangs;
  options_.on_hang = [&hangs](int, bool does) { hangs.push_back(does); };
  open(false);
  Request running = request("running"), waiting = request("waiting");
  dispatcher_->submit(running);
  std::vector<Request> batch = dispatcher_->next_batch(instance());
  ASSERT_EQ(batch.size(), 1U);
  dispatcher_->begins(instance(), batch, 0);
  dispatcher_->submit(waiting);
  clock_.advance(2 * base::kNsPerSecond);
  // keep() returns once all is closed and nothing is left to do; it does not wait for what hangs.
  std::thread keeper([this] { dispatcher_->keep(); });
  while (dispatcher_->stats().hung == 0) std::this_thread::yield();
  dispatcher_->drain();
  dispatcher_->close();
  keeper.join();
  ASSERT_EQ(told_.size(), 2U);
  EXPECT_EQ(told_[0], "running: the model's instance hangs: the batch took longer than the time limit");
  EXPECT_EQ(told_[1], "waiting: no instance of the model is left: their batches do not end");
  EXPECT_EQ(instance().stop.reason(), engine::StopReason::hangs);
  EXPECT_TRUE(dispatcher_->computed(instance(), Timing{}, {.batch = batch, .ended = 1}));
  dispatcher_->finish(instance(), 0);
  EXPECT_EQ(dispatcher_->stats().hung, 0);
  EXPECT_EQ(instance().stop.reason(), engine::StopReason::none);
  EXPECT_EQ(hangs,
            std::vector<bool>{true});  // the late end of the run is not reported once all has been closed
}

}  // namespace
}  // namespace trireme::sched
