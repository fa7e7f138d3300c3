// Tests the scheduler with a small real model: batches equal singles bit for bit; all ways a request can end.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <condition_variable>
#include <future>
#include <latch>
#include <random>
#include <thread>

#include "base/machine/busy_cpus.h"
#include "base/machine/cpu_info.h"
#include "base/memory/memory_budget.h"
#include "engine/ranks/sharded_session.h"
#include "ops/table.h"

namespace trireme::sched {
namespace {

using tensor::Tensor;

/// y = sigmoid(x * w), x [batch, 24].
std::shared_ptr<const engine::PreparedModel> small_model() {
  ir::Graph g;
  const ir::ValueId x =
      g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), tensor::Dim(24)}});
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> weights(24 * 40);
  for (float& w : weights) w = normal(random);
  const ir::ValueId w = g.add_param("w", Tensor::from<float>({24, 40}, weights));
  const ir::ValueId product = g.add1(ops::table().need("matmul"), {x, w});
  g.add_output(g.add1(ops::table().need("sigmoid"), {product}), "y");
  return std::make_shared<const engine::PreparedModel>(std::move(g));
}

Tensor input(int64_t rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor t = Tensor::empty(tensor::DType::f32, {rows, 24});
  for (float& v : t.mutable_data<float>()) v = normal(random);
  return t;
}

SchedulerOptions options(int64_t max_rows, int64_t window_ms) {
  SchedulerOptions o;
  o.limits = {.max_rows = max_rows, .window_ns = window_ms * base::kNsPerMs};
  o.padding.row_buckets = {1, 2, 4, 8};
  o.session.threads = 1;
  return o;
}

/// A sink whose outcome can be awaited; a second call throws and fails the test.
struct Answer {
  std::promise<Outcome> promise;
  std::future<Outcome> future = promise.get_future();
  std::function<void(Outcome&&)> sink() {
    return [this](Outcome&& o) { promise.set_value(std::move(o)); };
  }
};

Request request(Tensor x, Answer& answer) {
  const int64_t rows = x.dims()[0];
  return {.inputs = {std::move(x)}, .rows = rows, .sink = answer.sink()};
}

/// The same for background work.
Request background_request(Tensor x, Answer& answer) {
  Request r = request(std::move(x), answer);
  r.priority = kBackgroundPriority;
  return r;
}

/// Occupies the scheduler's only instance: its sink returns only when released.
class Blocker {
 public:
  explicit Blocker(Scheduler& scheduler) {
    scheduler.submit({.inputs = {input(1, 99)}, .rows = 1, .sink = [this](Outcome&&) {
                        started_.count_down();
                        released_.wait();
                      }});
    started_.wait();
  }
  void release() { released_.count_down(); }

 private:
  std::latch started_{1}, released_{1};
};

TEST(Scheduler, BackgroundWorkStandsBehindClientsAndSharesNoBatchWithThem) {
  base::SystemClock clock;
  Scheduler scheduler(small_model(), options(8, 0), clock);
  std::vector<Answer> background(12), clients(3);
  std::mutex mutex;
  std::vector<std::pair<bool, int64_t>> order;  // whether it is a client's, rows of its batch
  const auto submit = [&](Answer& answer, unsigned seed, bool is_client) {
    Request r = request(input(1, seed), answer);
    if (!is_client) r.priority = kBackgroundPriority;
    r.sink = Sink([&, is_client, told = answer.sink()](Outcome&& o) {
      {
        const std::lock_guard lock(mutex);
        order.emplace_back(is_client, o.timing.batch_rows);
      }
      told(std::move(o));
    });
    scheduler.submit(std::move(r));
  };
  Blocker blocker(scheduler);
  for (unsigned i = 0; i < 12; ++i) submit(background[i], i, false);
  for (unsigned i = 0; i < 3; ++i) submit(clients[i], 20 + i, true);
  blocker.release();
  for (Answer& a : background) EXPECT_FALSE(a.future.get().error);
  for (Answer& a : clients) EXPECT_FALSE(a.future.get().error);
  const std::lock_guard lock(mutex);
  ASSERT_EQ(order.size(), 15U);
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(order[i].first, i < 3) << i;
    EXPECT_TRUE(!order[i].first || order[i].second == 3) << order[i].second;
  }
}

/// Waits, at most a minute, until background work is paused inside a run.
void await_pause(const Scheduler& scheduler) {
  for (int i = 0; i < 60'000 && scheduler.stats().paused == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A background run that has begun does not end before all clients' requests are answered, even later ones.
TEST(Scheduler, ABackgroundRunStandsStillWhileClientsWait) {
  base::SystemClock clock;
  Scheduler scheduler(small_model(), options(8, 0), clock);
  Answer background, client;
  bool was_first = false;
  Blocker blocker(scheduler);
  scheduler.submit(background_request(input(3, 5), background));
  await_pause(scheduler);
  Request second = request(input(3, 5), client);
  second.sink = Sink([&, told = client.sink()](Outcome&& o) {
    was_first = background.future.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
    told(std::move(o));
  });
  scheduler.submit(std::move(second));
  blocker.release();
  const Outcome one = client.future.get(), two = background.future.get();
  EXPECT_TRUE(was_first);
  ASSERT_FALSE(one.error || two.error);
  EXPECT_TRUE(two.outputs.at(0).same_as(one.outputs.at(0)));
}

// A paused run is answered when the scheduler closes; later requests are refused.
TEST(Scheduler, DrainEndsBackgroundRunsThatStandStill) {
  base::SystemClock clock;
  Scheduler scheduler(small_model(), options(8, 0), clock);
  Answer background, late;
  Blocker blocker(scheduler);
  scheduler.submit(background_request(input(3, 5), background));
  await_pause(scheduler);
  std::thread closes([&] { scheduler.drain(); });
  blocker.release();
  closes.join();
  EXPECT_FALSE(background.future.get().error);
  scheduler.submit(background_request(input(3, 5), late));
  EXPECT_TRUE(late.future.get().error);
}

// However clients come and go, every request gets one answer, and the right one.
TEST(Scheduler, BackgroundWorkLosesNothingBesideClients) {
  base::SystemClock clock;
  const auto model = small_model();
  Scheduler scheduler(model, options(8, 0), clock);
  engine::Session session(model, {.threads = 1});
  constexpr unsigned kRequests = 150;
  std::vector<Answer> background(kRequests), clients(kRequests);
  std::thread batch([&] {
    for (unsigned i = 0; i < kRequests; ++i)
      scheduler.submit(background_request(input(1 + i % 5, i), background[i]));
  });
  for (unsigned i = 0; i < kRequests; ++i) {
    scheduler.submit(request(input(1 + i % 3, 1000 + i), clients[i]));
    if (i % 4 == 0) clients[i].future.wait();
  }
  batch.join();
  for (unsigned i = 0; i < kRequests; ++i) {
    const Outcome one = background[i].future.get(), other = clients[i].future.get();
    ASSERT_FALSE(one.error || other.error) << i;
    EXPECT_TRUE(one.outputs.at(0).same_as(session.run({input(1 + i % 5, i)})[0])) << i;
    EXPECT_TRUE(other.outputs.at(0).same_as(session.run({input(1 + i % 3, 1000 + i)})[0])) << i;
  }
}

TEST(Scheduler, ARowIsTheSameAloneAndInABatch) {
  base::SystemClock clock;
  const auto model = small_model();
  std::vector<Tensor> alone;
  {
    Scheduler single(model, options(1, 0), clock);
    for (unsigned i = 0; i < 7; ++i) {
      Answer a;
      single.submit(request(input(1, i), a));
      alone.push_back(a.future.get().outputs.at(0));
    }
  }
  Scheduler batching(model, options(8, 200), clock);
  std::vector<Answer> answers(7);
  for (unsigned i = 0; i < 7; ++i) batching.submit(request(input(1, i), answers[i]));
  int64_t most = 0;
  for (size_t i = 0; i < 7; ++i) {
    const Outcome o = answers[i].future.get();
    ASSERT_FALSE(o.error) << o.error->message();
    most = std::max(most, o.timing.batch_rows);
    EXPECT_TRUE(o.outputs.at(0).same_as(alone[i])) << i;
  }
  EXPECT_EQ(most, 7);  // some shared a batch
}

TEST(Scheduler, AnIdleInstanceRunsAQuickRequestOnTheThreadThatSubmits) {
  base::SystemClock clock;
  SchedulerOptions o = options(8, 0);
  o.inline_ns = 1000 * base::kNsPerMs;
  Scheduler scheduler(small_model(), o, clock);
  std::thread::id first_ran, second_ran;
  Answer first;
  scheduler.submit({.inputs = {input(1, 1)}, .rows = 1, .sink = [&](Outcome&& out) {
                      first_ran = std::this_thread::get_id();
                      first.promise.set_value(std::move(out));
                    }});
  const Tensor expected = first.future.get().outputs.at(0);
  EXPECT_NE(first_ran, std::this_thread::get_id());  // its cost was not known yet
  bool is_answered = false;
  for (int i = 0; i < 1000 && second_ran != std::this_thread::get_id(); ++i) {
    Answer next;
    is_answered = false;
    scheduler.submit({.inputs = {input(1, 1)}, .rows = 1, .sink = [&](Outcome&& out) {
                        second_ran = std::this_thread::get_id();
                        EXPECT_TRUE(out.outputs.at(0).same_as(expected));
                        is_answered = true;
                        next.promise.set_value(std::move(out));
                      }});
    if (second_ran != std::this_thread::get_id()) next.future.get();
  }
  EXPECT_EQ(second_ran, std::this_thread::get_id());
  EXPECT_TRUE(is_answered);
  scheduler.drain();
  EXPECT_EQ(scheduler.stats().accepted, scheduler.stats().batches);
}

// Threads that run their own requests, the instances' threads, and a drain in between: each request gets one
// answer.
TEST(Scheduler, ManyThreadsThatRunTheirOwnRequestsGetOneAnswerEach) {
  base::SystemClock clock;
  SchedulerOptions o = options(8, 0);
  o.inline_ns = 200 * base::kNsPerUs;
  o.instances = 2;
  auto scheduler = std::make_unique<Scheduler>(small_model(), o, clock);
  constexpr int kThreads = 4, kEach = 3000;
  std::atomic<int> done{0}, refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        scheduler->submit({.inputs = {input(1 + t % 2, 5)}, .rows = 1 + t % 2, .sink = [&](Outcome&& out) {
                             (out.error ? refused : done).fetch_add(1);
                           }});
      }
    });
  }
  while (done.load() < kThreads * kEach / 2 && done.load() + refused.load() < kThreads * kEach) {
    std::this_thread::yield();
  }
  scheduler->drain();
  for (std::thread& thread : threads) thread.join();
  scheduler.reset();
  EXPECT_EQ(done.load() + refused.load(), kThreads * kEach);
  EXPECT_GE(done.load(), 1);
}

TEST(Scheduler, RequestsOfManyRowsGetTheirOwnRowsBack) {
  base::SystemClock clock;
  Scheduler scheduler(small_model(), options(8, 200), clock);
  std::vector<Answer> answers(2);
  const Tensor both[] = {input(3, 1), input(2, 2)};
  for (size_t i = 0; i < 2; ++i) scheduler.submit(request(both[i], answers[i]));
  const Outcome first = answers[0].future.get(), second = answers[1].future.get();
  EXPECT_EQ(first.outputs.at(0).dims(), (tensor::Dims{3, 40}));
  EXPECT_EQ(second.outputs.at(0).dims(), (tensor::Dims{2, 40}));
  EXPECT_EQ(first.timing.batch_rows, 5);
  EXPECT_EQ(first.timing.padded_rows, 8);
}

TEST(Scheduler, AFullQueueRefusesAtOnce) {
  base::SystemClock clock;
  SchedulerOptions o = options(1, 0);
  o.max_queue = 2;
  Scheduler scheduler(small_model(), o, clock);
  Blocker blocker(scheduler);
  std::vector<Answer> answers(3);
  for (Answer& a : answers) scheduler.submit(request(input(1, 1), a));
  const Outcome refused = answers[2].future.get();
  EXPECT_EQ(refused.ending, Ending::refused);
  EXPECT_EQ(refused.error->code(), base::ErrorCode::unavailable);
  EXPECT_NE(refused.error->message().find("Exceeds maximum queue size"), std::string::npos);
  EXPECT_EQ(scheduler.stats().waiting, 2u);
  blocker.release();
  EXPECT_FALSE(answers[0].future.get().error);
  EXPECT_FALSE(answers[1].future.get().error);
  EXPECT_EQ(scheduler.stats().refused, 1u);
}

/// Seconds to queue `count` requests behind a running one and to run them in batches of eight.
double seconds_of_queue(size_t count, const std::function<void(Request&, size_t)>& change) {
  base::SystemClock clock;
  SchedulerOptions o = options(8, 0);
  o.max_queue = count;
  o.runs_whole = true;
  Scheduler scheduler(small_model(), o, clock);
  Blocker blocker(scheduler);
  std::latch done(static_cast<ptrdiff_t>(count));
  const Tensor x = input(1, 1);
  const int64_t start_ns = clock.now_ns();
  for (size_t i = 0; i < count; ++i) {
    Request r{.inputs = {x}, .rows = 1, .sink = [&](Outcome&& outcome) {
                EXPECT_FALSE(outcome.error);
                done.count_down();
              }};
    change(r, i);
    scheduler.submit(std::move(r));
  }
  blocker.release();
  done.wait();
  return static_cast<double>(clock.now_ns() - start_ns) * 1e-9;
}

// The cost of a request must not grow with the number that wait: ten times as many may take at most thirty
// times as long; quadratic cost would take a hundred times.
TEST(Scheduler, ALongQueueCostsNoMoreForEachThanAShortOne) {
  const auto plain = [](Request&, size_t) {};
  const auto mixed = [](Request& r, size_t i) {
    r.priority = static_cast<uint32_t>(i % 3);
    r.deadline_ns = base::SystemClock().now_ns() + 600 * base::kNsPerSecond;
    r.cancelled = [] { return false; };
  };
  for (const std::function<void(Request&, size_t)>& change : {std::function(plain), std::function(mixed)}) {
    const double few = seconds_of_queue(6'000, change), many = seconds_of_queue(60'000, change);
    std::printf("6,000 wait: %.3f s; 60,000 wait: %.3f s\n", few, many);
    EXPECT_LT(many, 30 * few + 0.5);
  }
}

// A request that is late, or whose client has left, is answered while the only instance is busy.
TEST(Scheduler, WhoIsLateOrLeftDoesNotWaitForAnInstance) {
  base::SystemClock clock;
  SchedulerOptions o = options(8, 0);
  o.max_queue = 2;
  Scheduler scheduler(small_model(), o, clock);
  Blocker blocker(scheduler);
  Answer late, gone, refused, next;
  Request r = request(input(1, 1), late);
  r.deadline_ns = clock.now_ns() + base::kNsPerSecond;  // the other two arrive earlier
  scheduler.submit(std::move(r));
  std::atomic<bool> has_left{false};
  r = request(input(1, 2), gone);
  r.cancelled = [&] { return has_left.load(); };
  scheduler.submit(std::move(r));
  scheduler.submit(request(input(1, 3), refused));
  EXPECT_EQ(refused.future.get().ending, Ending::refused);
  has_left = true;
  ASSERT_EQ(late.future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(late.future.get().ending, Ending::expired);
  ASSERT_EQ(gone.future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(gone.future.get().ending, Ending::cancelled);
  EXPECT_EQ(scheduler.stats().waiting, 0u);
  scheduler.submit(request(input(1, 4), next));  // their places are free again
  blocker.release();
  EXPECT_FALSE(next.future.get().error);
}

// The same for a request that a busy instance must run, beside an idle one.
TEST(Scheduler, WhoIsLateForABusyInstanceIsToldByAnIdleOne) {
  base::SystemClock clock;
  SchedulerOptions o = options(8, 0);
  o.instances = 2;
  o.places_rows = true;
  Scheduler scheduler(small_model(), o, clock);
  std::latch started(1), released(1);
  const auto of_first = [](Answer& answer) {
    Request r = request(input(1, 1), answer);
    r.instance = 0;
    r.row = 0;
    return r;
  };
  Answer first, late;
  Request r = of_first(first);
  r.sink = Sink([&, told = first.sink()](Outcome&& outcome) {
    started.count_down();
    released.wait();
    told(std::move(outcome));
  });
  scheduler.submit(std::move(r));
  started.wait();
  r = of_first(late);
  r.deadline_ns = clock.now_ns() + 10 * base::kNsPerMs;
  scheduler.submit(std::move(r));
  EXPECT_EQ(late.future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  released.count_down();
  EXPECT_FALSE(first.future.get().error);
  EXPECT_EQ(late.future.get().ending, Ending::expired);
}

TEST(Scheduler, ExpiredAndCancelledRequestsAreNotRun) {
  base::SystemClock clock;
  Scheduler scheduler(small_model(), options(8, 0), clock);
  Blocker blocker(scheduler);
  Answer late, gone, good;
  Request r = request(input(1, 1), late);
  r.deadline_ns = clock.now_ns() + base::kNsPerMs;
  scheduler.submit(std::move(r));
  r = request(input(1, 2), gone);
  r.cancelled = [] { return true; };
  scheduler.submit(std::move(r));
  scheduler.submit(request(input(1, 3), good));
  clock.sleep_until(clock.now_ns() + 5 * base::kNsPerMs);
  blocker.release();
  EXPECT_EQ(late.future.get().ending, Ending::expired);
  EXPECT_EQ(gone.future.get().ending, Ending::cancelled);
  const Outcome done = good.future.get();
  EXPECT_EQ(done.ending, Ending::done);
  EXPECT_EQ(done.timing.batch_rows, 1);
}

TEST(Scheduler, DrainRunsWhatWaitsAndRefusesWhatComes) {
  base::SystemClock clock;
  Scheduler scheduler(small_model(), options(4, 10'000), clock);  // a window far longer than the test
  std::vector<Answer> answers(3);
  for (Answer& a : answers) scheduler.submit(request(input(1, 5), a));
  scheduler.drain();
  for (Answer& a : answers) EXPECT_FALSE(a.future.get().error);
  Answer after;
  scheduler.submit(request(input(1, 5), after));
  EXPECT_EQ(after.future.get().ending, Ending::refused);
}

TEST(Scheduler, DestructionAnswersEverybody) {
  base::SystemClock clock;
  std::vector<Answer> answers(4);
  {
    Scheduler scheduler(small_model(), options(8, 10'000), clock);
    for (Answer& a : answers) scheduler.submit(request(input(1, 5), a));
  }
  for (Answer& a : answers) {
    EXPECT_EQ(a.future.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  }
}

TEST(Scheduler, DifferentInnerShapesDoNotMix) {
  // 25 columns do not fit the model: that request fails, but the other does not.
  base::SystemClock clock;
  Scheduler scheduler(small_model(), options(8, 20), clock);
  Answer good, bad;
  scheduler.submit(request(input(2, 1), good));
  scheduler.submit(request(Tensor::zeros(tensor::DType::f32, {2, 25}), bad));
  EXPECT_EQ(bad.future.get().ending, Ending::failed);
  EXPECT_FALSE(good.future.get().error);
}

// Creators of requests check them, but an inconsistent one must not harm others either.
TEST(Scheduler, RowsThatDisagreeAreNotTaken) {
  base::SystemClock clock;
  Scheduler scheduler(small_model(), options(8, 0), clock);
  Answer a;
  Request r = request(input(2, 1), a);
  r.rows = 3;
  try {
    scheduler.submit(std::move(r));
    FAIL() << "it was taken";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::internal);
  }
  EXPECT_EQ(scheduler.stats().accepted, 0u);
}

TEST(Scheduler, ManyThreadsManyInstances) {
  base::SystemClock clock;
  SchedulerOptions o = options(8, 1);
  o.instances = 3;
  o.warm_up = {{.example = {input(1, 0)}, .rows = {1, 2, 4, 8}}};
  std::atomic<int64_t> batches{0}, rows{0};
  Scheduler scheduler(small_model(), o, clock, [&](const Timing& t) {
    ++batches;
    rows += t.batch_rows;
  });
  constexpr int kThreads = 4, kEach = 50;
  std::latch done(kThreads * kEach);
  std::atomic<int> failed{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < kThreads; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < kEach; ++i) {
        scheduler.submit({.inputs = {input(1, static_cast<unsigned>(c * kEach + i))},
                          .rows = 1,
                          .sink = [&](Outcome&& outcome) {
                            failed += outcome.error.has_value();
                            done.count_down();
                          }});
      }
    });
  }
  for (std::thread& t : clients) t.join();
  done.wait();
  scheduler.drain();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(rows, kThreads * kEach);
  EXPECT_EQ(batches, static_cast<int64_t>(scheduler.stats().batches));
}

TEST(Scheduler, AnAdaptiveWindowDoesNotMakeALoneClientWait) {
  base::SystemClock clock;
  SchedulerOptions o = options(8, 200'000);
  o.is_window_adaptive = true;
  Scheduler scheduler(small_model(), o, clock);
  const int64_t start = clock.now_ns();
  for (unsigned i = 0; i < 20; ++i) {
    Answer a;
    scheduler.submit(request(input(1, i), a));
    EXPECT_FALSE(a.future.get().error);
  }
  EXPECT_LT(clock.now_ns() - start, 100 * base::kNsPerSecond) << "one waited for the window";
}

/// y = tanh(x w1) w2, which two ranks split between the two products.
std::shared_ptr<const engine::PreparedModel> wide_model() {
  ir::Graph g;
  const auto batch = tensor::Dim::symbol("batch");
  const ir::ValueId x = g.add_input("x", {tensor::DType::f32, {batch, tensor::Dim(24)}});
  const auto weight = [&](const char* name, int64_t rows, int64_t cols) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * std::sin(static_cast<float>(i));
    return g.add_param(name, Tensor::from<float>({rows, cols}, values));
  };
  const ir::ValueId up = g.add1(ops::table().need("matmul"), {x, weight("up", 24, 64)});
  const ir::ValueId act = g.add1(ops::table().need("tanh"), {up});
  g.add_output(g.add1(ops::table().need("matmul"), {act, weight("down", 64, 24)}), "y");
  return std::make_shared<const engine::PreparedModel>(std::move(g));
}

// If threads count as computing on all processors but one, batches run on that one.
TEST(Scheduler, BatchesRunWhereNobodyElseComputes) {
  const base::SystemClock clock;
  const std::vector<int> cpus = base::read_cpu_info().allowed;
  if (cpus.size() < 2) GTEST_SKIP() << "one processor";
  const int free = cpus.back();
  Scheduler scheduler(small_model(), options(8, 0), clock);
  std::latch seated(static_cast<ptrdiff_t>(cpus.size() - 1)), over(1);
  std::vector<std::thread> others;
  for (size_t i = 0; i + 1 < cpus.size(); ++i) {
    others.emplace_back([&, cpu = cpus[i]] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
      const base::BusyCpu busy = base::BusyCpu::here();
      seated.count_down();
      over.wait();
    });
  }
  seated.wait();
  constexpr int kRequests = 50;
  int there = 0;
  for (int i = 0; i < kRequests; ++i) {
    std::promise<int> cpu;
    scheduler.submit(
        {.inputs = {input(1, 3)}, .rows = 1, .sink = [&](Outcome&&) { cpu.set_value(sched_getcpu()); }});
    there += cpu.get_future().get() == free;
  }
  over.count_down();
  for (std::thread& t : others) t.join();
  EXPECT_GE(there, kRequests * 8 / 10);  // the system may move a thread meanwhile
}

TEST(Scheduler, TellsHaltPollingOfBatches) {
  const base::SystemClock clock;
  const auto polling = std::make_shared<base::HaltPolling>(
      60 * base::kNsPerSecond, std::vector<int>{base::read_cpu_info().allowed.front()});
  SchedulerOptions o = options(8, 0);
  o.halt_polling = polling;
  Scheduler scheduler(small_model(), o, clock);
  while (polling->polling() > 0) std::this_thread::yield();
  Answer answer;
  scheduler.submit(request(input(1, 3), answer));
  ASSERT_FALSE(answer.future.get().error);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (polling->polling() == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(polling->polling(), 1);
}

/// y = softmax over groups of four elements, which may span two rows: x [batch, length].
std::shared_ptr<const engine::PreparedModel> softmax_of_fours() {
  ir::Graph g;
  const ir::ValueId x =
      g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), tensor::Dim::symbol("length")}});
  const ir::ValueId fours = g.add_constant(Tensor::from<int64_t>({2}, {-1, 4}));
  const ir::ValueId groups = g.add1(ops::table().need("reshape"), {x, fours});
  const ir::ValueId y = g.add1(ops::table().need("softmax"), {groups}, {{"axis", int64_t{-1}}});
  const ir::ValueId shape = g.add1(ops::table().need("shape"), {x});
  g.add_output(g.add1(ops::table().need("reshape"), {y, shape}), "y");
  return std::make_shared<const engine::PreparedModel>(std::move(g));
}

// Rows of eight are independent, but rows of six are not: two adjacent ones share a group of four.
TEST(BatchRunner, RequestsShareABatchOnlyWhereTheirExtentsAreShownToKeepRowsApart) {
  engine::Session session(softmax_of_fours(), {.threads = 1});
  const Padding padding{.is_shown = true, .row_buckets = {1, 2, 4}};
  BatchRunner runner(session, padding);
  base::SystemClock clock;
  for (const int64_t length : {8, 6}) {
    std::vector<Request> batch;
    std::vector<Outcome> outcomes(2);
    for (size_t i = 0; i < 2; ++i) {
      Tensor x = Tensor::empty(tensor::DType::f32, {2, length});
      for (size_t k = 0; float& v : x.mutable_data<float>()) v = static_cast<float>((i + 1) * k++ % 5);
      batch.push_back(
          {.inputs = {x}, .rows = 2, .sink = [&, i](Outcome&& o) { outcomes[i] = std::move(o); }});
    }
    const std::vector<Tensor> alone = session.run(batch[1].inputs);
    runner.run(batch, clock, {});
    for (const Outcome& o : outcomes) {
      ASSERT_FALSE(o.error) << o.error->message();
      EXPECT_EQ(o.timing.batch_rows, length == 8 ? 4 : 2) << length;
    }
    EXPECT_TRUE(outcomes[1].outputs.at(0).same_as(alone.at(0))) << length;
  }
}

// A row is not padded where it would share a group of four with padding: it runs alone and is refused.
TEST(BatchRunner, ARowIsNotFilledUpWhereItWouldMeetTheFilling) {
  engine::Session session(softmax_of_fours(), {.threads = 1});
  const Padding padding{.is_shown = true, .row_buckets = {2}};
  BatchRunner runner(session, padding);
  base::SystemClock clock;
  std::vector<Request> batch(1);
  Outcome outcome;
  batch[0].inputs = {Tensor::empty(tensor::DType::f32, {1, 6})};
  batch[0].rows = 1;
  batch[0].sink = [&](Outcome&& o) { outcome = std::move(o); };
  runner.run(batch, clock, {});
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code(), base::ErrorCode::invalid_argument);
}

TEST(BatchRunner, ALostRankFailsARequestWithUnavailableAndTheNextIsAnswered) {
  const auto model = wide_model();
  engine::Session session(model, {.threads = 2, .strategy = {.tp = 2}}), one(model, {.threads = 1});
  const Padding padding{.row_buckets = {1, 2, 4}};
  BatchRunner runner(session, padding);
  const base::SystemClock clock;
  const auto ask = [&](size_t requests) {
    std::vector<Answer> answers(requests);
    std::vector<Request> batch;
    for (size_t i = 0; i < requests; ++i) batch.push_back(request(input(1, 5), answers[i]));
    runner.run(batch, clock, {});
    std::vector<Outcome> outcomes;
    for (Answer& a : answers) outcomes.push_back(a.future.get());
    return outcomes;
  };
  const std::vector<double> want = one.run({input(1, 5)})[0].to_doubles();
  const auto expect_answered = [&](const Outcome& o) {
    ASSERT_FALSE(o.error) << o.error->message();
    const std::vector<double> got = o.outputs[0].to_doubles();
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5);
  };
  expect_answered(ask(1)[0]);
  session.sharded()->lose(1);
  const Outcome lost = ask(1)[0];
  ASSERT_TRUE(lost.error);
  EXPECT_EQ(lost.error->code(), base::ErrorCode::unavailable) << lost.error->message();
  expect_answered(ask(1)[0]);
  EXPECT_EQ(session.sharded()->restarts(), 1);
  // A batch that fails is run again request by request: on the new ranks, all are answered.
  session.sharded()->lose(1);
  for (const Outcome& o : ask(3)) expect_answered(o);
}

TEST(Scheduler, AFailingWarmUpIsThrown) {
  base::SystemClock clock;
  SchedulerOptions o = options(8, 0);
  o.instances = 2;
  o.warm_up = {{.example = {Tensor::zeros(tensor::DType::f32, {1, 25})}}};
  EXPECT_THROW(Scheduler(small_model(), o, clock), base::Error);
}

/// y = 2 x, x [batch, 3, n, 2]: works on single elements, so padding cannot change the result.
std::shared_ptr<const engine::PreparedModel> doubling_model() {
  ir::Graph g;
  const ir::ValueId x = g.add_input(
      "x", {tensor::DType::f32,
            {tensor::Dim::symbol("batch"), tensor::Dim(3), tensor::Dim::symbol("n"), tensor::Dim(2)}});
  g.add_output(g.add1(ops::table().need("add"), {x, x}), "y");
  return std::make_shared<const engine::PreparedModel>(std::move(g));
}

TEST(Scheduler, FillsLengthsUpAndCutsAnswers) {
  base::SystemClock clock;
  SchedulerOptions o = options(8, 0);
  o.hold_until = 3;
  o.padding.length_buckets = {4, 8};
  o.padding.padded_sides = {{.tensor = 0, .dim = 2, .value = 7}};
  o.padding.cropped_outputs = {{.tensor = 0, .dim = 2, .input = 0, .input_dim = 2}};
  std::vector<Timing> batches;
  Scheduler scheduler(doubling_model(), o, clock, [&](const Timing& t) { batches.push_back(t); });
  Answer answers[4];
  const int64_t lengths[] = {3, 4, 1, 8};
  std::vector<Tensor> inputs;
  for (int i = 0; i < 4; ++i) {
    Tensor x = Tensor::empty(tensor::DType::f32, {i + 1, 3, lengths[i], 2});
    float next = 0;
    for (float& v : x.mutable_data<float>()) v = next++;
    inputs.push_back(x);
    scheduler.submit(request(x, answers[i]));
  }
  for (int i = 0; i < 4; ++i) {
    const Outcome out = answers[i].future.get();
    ASSERT_FALSE(out.error) << out.error->message();
    ASSERT_EQ(out.outputs.at(0).dims(), inputs[static_cast<size_t>(i)].dims());
    const auto got = out.outputs[0].data<float>(), want = inputs[static_cast<size_t>(i)].data<float>();
    for (size_t k = 0; k < want.size(); ++k) ASSERT_EQ(got[k], 2 * want[k]) << i << " " << k;
  }
  scheduler.drain();
  ASSERT_EQ(batches.size(), 2u);
  // 1+2+3 rows are padded to 8; lengths 3, 4 and 1 to 4, times 6.
  EXPECT_EQ(batches[0].elements, 8 * 6 * 4);
  EXPECT_EQ(batches[0].padded, 8 * 6 * 4 - 6 * (1 * 3 + 2 * 4 + 3 * 1));
  EXPECT_EQ(batches[1].padded, 0);
}

// One row of 8 MB in a batch padded to 8 rows: refused because of the memory its program would need, before
// it is padded.
TEST(Scheduler, BatchesWhoseProgramDoesNotFitAreRefusedUnfilled) {
  base::SystemClock clock;
  SchedulerOptions o = options(8, 0);
  o.padding.row_buckets = {8};
  o.session.memory_bytes = int64_t{48} << 20;
  Scheduler scheduler(doubling_model(), o, clock);
  base::MemoryBudget& budget = base::process_memory();
  const Tensor x = Tensor::zeros(tensor::DType::f32, {1, 3, 350'000, 2});
  budget.set_limit(budget.used_bytes() + (int64_t{48} << 20));
  const uint64_t refused = budget.refused();
  Answer large, small;
  scheduler.submit(request(x, large));
  const Outcome out = large.future.get();
  EXPECT_EQ(budget.refused(), refused);
  budget.set_limit(INT64_MAX);
  ASSERT_TRUE(out.error.has_value());
  EXPECT_EQ(out.error->code(), base::ErrorCode::exhausted);
  scheduler.submit(request(Tensor::zeros(tensor::DType::f32, {1, 3, 4, 2}), small));
  EXPECT_FALSE(small.future.get().error.has_value());
}

TEST(SameGroup, ComparesTypesExtentsBucketsAndScalars) {
  const Padding padding{.length_buckets = {16, 32}, .padded_inputs = {0}};
  const auto of = [](tensor::Dims dims) { return std::vector{Tensor::zeros(tensor::DType::f32, dims)}; };
  EXPECT_TRUE(same_group(of({1, 3}), of({5, 16}), padding));
  EXPECT_FALSE(same_group(of({1, 16}), of({1, 17}), padding));
  EXPECT_FALSE(same_group(of({1, 16, 2}), of({1, 16, 3}), padding));
  EXPECT_FALSE(same_group(of({1, 16}), {Tensor::zeros(tensor::DType::i32, {1, 16})}, padding));
  EXPECT_FALSE(same_group({Tensor::scalar(1.0f)}, {Tensor::scalar(2.0f)}, padding));
  EXPECT_EQ(group_key(of({1, 3}), padding), group_key(of({5, 16}), padding));
}

}  // namespace
}  // namespace trireme::sched
