// How batches are cut into slices, and that slices compute the same bytes.
#include "lower/batch_slices.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/threads/pause_point.h"
#include "lower/batch_proof.h"
#include "engine/session/session.h"
#include "engine/session/test_noise.h"
#include "ops/table.h"
#include "passes/pass.h"
#include "tests/test_device.h"
#include "tests/work_growth.h"

namespace trireme::engine {
namespace {

using tensor::Tensor;

compile::Program program_of(int64_t arena, int64_t values, int64_t weights) {
  compile::Program p;
  p.memory = {.arena_bytes = arena, .sum_bytes = values, .constant_bytes = weights};
  return p;
}

TEST(PlanSlices, CutsWhatOutgrowsTheCacheAndSharesRowsAmongThreads) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto slices = [](const compile::Program& p, int64_t rows, int threads) {
    const lower::SlicePlan plan = lower::plan_slices(p, rows, threads);
    return std::pair<int64_t, int>(plan.slices, plan.lanes);
  };
  using Pair = std::pair<int64_t, int>;
  EXPECT_EQ(slices(program_of(8 * kMiB, 40 * kMiB, 14 * kMiB), 8, 1), Pair(4, 1));
  EXPECT_EQ(slices(program_of(8 * kMiB, 40 * kMiB, 14 * kMiB), 8, 4), Pair(8, 4));
  EXPECT_EQ(slices(program_of(8 * kMiB, 40 * kMiB, 14 * kMiB), 7, 4), Pair(7, 1));  // odd: one row at a time
  EXPECT_EQ(slices(program_of(kMiB, 4 * kMiB, kMiB), 8, 1), Pair(1, 1));            // fits the cache as it is
  EXPECT_EQ(slices(program_of(kMiB, 4 * kMiB, kMiB), 8, 4), Pair(4, 4));
  EXPECT_EQ(slices(program_of(kMiB, 4 * kMiB, 400 * kMiB), 8, 4), Pair(1, 1));  // more weights than values
  EXPECT_EQ(slices(program_of(8 * kMiB, 40 * kMiB, 14 * kMiB), 1, 4), Pair(1, 1));
  // Less work than waking a thread.
  EXPECT_EQ(slices(program_of(0, 64, 0), 32, 4), Pair(1, 1));
  EXPECT_EQ(slices(program_of(0, 4096, 0), 32, 4), Pair(1, 1));
  EXPECT_EQ(slices(program_of(0, 65536, 0), 32, 4), Pair(4, 4));
}

// The number of rows without elements comes from a request, and must not determine the amount of work.
TEST(PlanSlices, TakesBoundedTimeForAnyNumberOfRows) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  for (const int64_t rows : {int64_t{1} << 50, (int64_t{1} << 50) + 1, (int64_t{1} << 56) - 5}) {
    for (const int threads : {1, 2, 7}) {
      const double seconds = tests::least_cpu_seconds(1, [&] {
        for (const compile::Program& p :
             {program_of(0, 0, 0), program_of(1, 1, 1), program_of(kMiB, kMiB, 1)}) {
          const lower::SlicePlan plan = lower::plan_slices(p, rows, threads);
          EXPECT_EQ(rows % plan.slices, 0);
        }
      });
      EXPECT_LT(seconds, 2) << rows;
    }
  }
}

/// A product with `flop_per_byte` operations for each byte of weights, and a table of which little is read.
compile::Program product_and_table(double flop_per_byte, int64_t weights) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  compile::Program p = program_of(kMiB, 4 * kMiB, 400 * kMiB);
  p.slots.push_back({.kind = compile::SlotKind::constant, .bytes = weights});
  p.slots.push_back({.kind = compile::SlotKind::constant, .bytes = 360 * kMiB});
  compile::Step product, gather;
  product.in = {compile::SlotId(0), compile::kNoSlot};
  gather.in = {compile::SlotId(1)};
  product.cost = {.flop = flop_per_byte * static_cast<double>(weights),
                  .bytes = 1.25 * static_cast<double>(weights)};
  gather.cost = {.flop = 0, .bytes = 1.0 * kMiB};
  p.steps = {product, gather};
  return p;
}

TEST(PlanSlices, RowsOfTheirOwnWhereAThreadComputesMuchForEachWeight) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const compile::Program p = product_and_table(60, 200 * kMiB);
  const lower::SlicePlan two = lower::plan_slices(p, 8, 4);  // two rows per thread
  EXPECT_EQ(two.slices, 4);
  EXPECT_EQ(two.lanes, 4);
  EXPECT_EQ(lower::plan_slices(p, 4, 4).lanes, 1);  // with one row each, too little work per weight
  // Weights that are still in a cache when the next lane reads them need less work per byte; the fewer lanes,
  // the less.
  const compile::Program near = product_and_table(18, 40 * kMiB);
  EXPECT_EQ(lower::plan_slices(near, 8, 4).lanes, 4);
  EXPECT_EQ(lower::plan_slices(near, 4, 4).lanes, 1);
  EXPECT_EQ(lower::plan_slices(near, 2, 2).lanes, 2);
}

const char* const kConvolutions = R"(graph "convolutions"
  %0 = input "x" : f32[n,8,20,20]
  %1 = param "w" : f32[16,8,3,3]#zeros
  %2 = param "v" : f32[8,16,1,1]#zeros
  %3 = conv(%0, %1) {kernel_shape=[3, 3], pads=[1, 1, 1, 1]}
  %4 = relu(%3)
  %5 = conv(%4, %2) {kernel_shape=[1, 1]}
  %6 = add(%5, %0)
  return %6 "y"
)";

std::shared_ptr<const PreparedModel> convolutions() {
  ir::Graph graph = ir::parse(kConvolutions, ops::table());
  uint64_t seed = 1;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind == ir::ValueKind::param) v.data = noise(v.data.dims(), ++seed);
  }
  return std::make_shared<const PreparedModel>(std::move(graph));
}

std::shared_ptr<const PreparedModel> model_with_constant_rows() {
  return std::make_shared<const PreparedModel>(ir::parse(R"(graph "constant_rows"
  %0 = input "x" : f32[n,4]
  %1 = const : f32[8,4]#zeros
  %2 = add(%0, %1)
  return %2 "y"
)",
                                                         ops::table()));
}

TEST(Slices, GiveTheBytesOfRowsRunAlone) {
  const auto model = convolutions();
  for (int threads : {1, 2, 4}) {
    Session batched(model, {.threads = threads}), alone(model, {.threads = 1});
    const Tensor x = noise({8, 8, 20, 20}, 9);
    if (threads > 1) {
      EXPECT_GT(batched.slices({x.dims()}), 1) << "threads " << threads;
    }
    const Tensor y = batched.run({x})[0];
    ASSERT_EQ(y.dims(), (tensor::Dims{8, 8, 20, 20}));
    for (int64_t row = 0; row < 8; ++row) {
      const Tensor one = alone.run({x.rows(row, row + 1)})[0];
      EXPECT_TRUE(y.rows(row, row + 1).same_as(one)) << "row " << row << ", threads " << threads;
    }
  }
}

// A paused run stops between two steps in every lane and loses nothing: other runs of the model go on
// meanwhile, and its result has the same bytes as without a pause.
TEST(Slices, StandStillBetweenStepsWhileTheirThreadIsHeld) {
  const auto model = convolutions();
  const Tensor x = noise({8, 8, 20, 20}, 9);
  for (int threads : {1, 2}) {
    Session waits(model, {.threads = threads}), other(model, {.threads = threads});
    const Tensor expected = other.run({x})[0];
    base::PausePoint point;
    point.hold();
    std::atomic<bool> has_ended{false};
    Tensor y;
    std::thread thread([&] {
      const base::PausePoint::Scope here(&point);
      y = waits.run({x})[0];
      has_ended = true;
    });
    while (point.waiting() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(other.run({x})[0].same_as(expected));
    EXPECT_FALSE(has_ended);
    point.release();
    thread.join();
    EXPECT_TRUE(y.same_as(expected)) << "threads " << threads;
    const auto steps = static_cast<int64_t>(waits.prepare({x.dims()}).steps.size());
    EXPECT_GT(steps, 1);
    EXPECT_EQ(static_cast<int64_t>(point.passes()), steps * waits.slices({x.dims()}));
    // Paused and resumed at arbitrary moments.
    std::thread others([&] {
      for (int i = 0; i < 200; ++i) {
        point.hold();
        std::this_thread::yield();
        point.release();
      }
    });
    const base::PausePoint::Scope here(&point);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(waits.run({x})[0].same_as(expected));
    others.join();
  }
}

// Two products over `tokens` rows of 512 channels: 2 operations per weight and token.
std::shared_ptr<const PreparedModel> two_products(int64_t tokens) {
  ir::Graph graph = ir::parse("graph \"products\"\n  %0 = input \"x\" : f32[n," + std::to_string(tokens) +
                                  ",512]\n  %1 = param \"w\" : f32[512,512]#zeros\n"
                                  "  %2 = param \"v\" : f32[512,512]#zeros\n  %3 = matmul(%0, %1)\n"
                                  "  %4 = matmul(%3, %2)\n  return %4 \"y\"\n",
                              ops::table());
  return std::make_shared<const PreparedModel>(std::move(graph));
}

// For weights near the cache, a slice does more than 30 operations per weight and thread.
TEST(Slices, EachThreadTakesRowsWhereTheyOutweighTheWeights) {
  const auto slices = [](int64_t tokens, int64_t rows, int threads) {
    return Session(two_products(tokens), {.threads = threads}).slices({{rows, tokens, 512}});
  };
  EXPECT_EQ(slices(32, 2, 2), 2);
  EXPECT_EQ(slices(24, 2, 2), 1);
  EXPECT_EQ(slices(24, 4, 2), 2);
  EXPECT_EQ(slices(32, 4, 4), 1);
  EXPECT_EQ(slices(32, 8, 4), 4);
  EXPECT_EQ(slices(64, 4, 4), 4);
}

// The constant has equal rows, but fits only batches of eight.
TEST(Slices, LeaveBatchesWholeThatAConstantFixes) {
  Session session(model_with_constant_rows(), {.device = tests::device_under_test(), .threads = 2});
  const Tensor x = noise({8, 4}, 3);
  EXPECT_EQ(session.slices({x.dims()}), 1);
  EXPECT_TRUE(session.run({x})[0].same_as(x));
}

/// Compares a batch of eight on two threads with each of its rows alone.
void expect_rows_alone(const std::string& body, const char* why) {
  const auto model = std::make_shared<const PreparedModel>(ir::parse(
      "graph \"g\"\n  %0 = input \"x\" : f32[n,8,24,24]\n  %1 = param \"w\" : f32[8,8,3,3]#ones\n" + body,
      ops::table()));
  const std::string reason = lower::why_not_batched(model->graph());
  EXPECT_NE(reason.find(why), std::string::npos) << reason;
  // A model without a proof runs as one batch: slices would give other numbers.
  const Tensor x = noise({8, 8, 24, 24}, 5);
  Session one(model, {.threads = 1}), four(model, {.threads = 4});
  EXPECT_EQ(four.slices({x.dims()}), 1);
  const std::vector<Tensor> a = one.run({x}), b = four.run({x});
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].same_as(b[i])) << "result " << i;
}

TEST(Slices, StatisticsOfTheBatchKeepItWhole) {
  expect_rows_alone(
      "  %2 = const : f32[8]#ones\n  %3 = conv(%0, %1) {pads=[1, 1, 1, 1]}\n"
      "  %4, %5, %6 = batch_norm(%3, %2, %2, %2, %2) {training_mode=1}\n"
      "  %7 = conv(%4, %1) {pads=[1, 1, 1, 1]}\n  return %7 \"y\"\n",
      "batch_norm");
}

TEST(Slices, PlacesOfMaximaInTheWholeTensorKeepItWhole) {
  expect_rows_alone(
      "  %2 = conv(%0, %1) {pads=[1, 1, 1, 1]}\n  %3, %4 = max_pool(%2) {kernel_shape=[2, 2]}\n"
      "  return %3 \"y\", %4 \"at\"\n",
      "max_pool");
}

TEST(Slices, ANumberOfRowsAsANumberKeepsThemTogether) {
  expect_rows_alone(
      "  %2 = conv(%0, %1) {pads=[1, 1, 1, 1]}\n  %3 = conv(%2, %1) {pads=[1, 1, 1, 1]}\n"
      "  %4 = shape(%0) {start=0, end=1}\n  %5 = cast(%4) {to=1}\n  %6 = div(%3, %5)\n  return %6 \"y\"\n",
      "div");
}

// No memory can hold a program for 2^50 rows; the error must come at once.
TEST(Slices, RowsWithoutElementsDoNotHoldAModelUp) {
  const auto model = std::make_shared<const PreparedModel>(ir::parse(
      "graph \"g\"\n  %0 = input \"x\" : f32[n,m]\n  %1 = relu(%0)\n  return %1 \"y\"\n", ops::table()));
  Session session(model, {.device = tests::device_under_test(), .threads = 2});
  const double seconds = tests::least_cpu_seconds(1, [&] {
    try {
      EXPECT_EQ(session.run({Tensor::empty(tensor::DType::f32, {int64_t{1} << 50, 0})}).size(), 1u);
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::exhausted) << e.what();
    }
  });
  EXPECT_LT(seconds, 5);
  EXPECT_EQ(session.run({noise({3, 2}, 1)})[0].dims(), (tensor::Dims{3, 2}));
}

TEST(Slices, RefuseResultsOfAnotherSize) {
  Session session(convolutions(), {.device = tests::device_under_test(), .threads = 2});
  std::vector<Tensor> wrong{Tensor::empty(tensor::DType::f32, {4, 8, 20, 20})};
  EXPECT_THROW(session.run_into({noise({8, 8, 20, 20}, 9)}, wrong), base::Error);
}

}  // namespace
}  // namespace trireme::engine
