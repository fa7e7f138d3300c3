// The runner of a stage: all schedules transfer all bytes, errors reach every stage, and bubbles are
// measured.
#include "engine/ranks/pipeline.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "comm/local.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using passes::PipelineAction;
using passes::PipelineSchedule;
using passes::PipelineShape;
using passes::PipelineWork;

/// Numbers take the place of activations: part k adds k + 1 in the forward pass, and k + 1 to the gradient in
/// the backward pass.
constexpr int64_t kBytes = 40;  // not a multiple of the alignment

void put(std::byte* to, int64_t value) {
  for (int64_t i = 0; i < kBytes / 8; ++i) std::memcpy(to + 8 * i, &value, 8);
}
int64_t get(const std::byte* from) {
  std::array<int64_t, kBytes / 8> all{};
  std::memcpy(all.data(), from, kBytes);
  for (int64_t v : all) EXPECT_EQ(v, all[0]);
  return all[0];
}

struct Counts {
  int64_t forward = 0, backward = 0, weights = 0;
};

/// Runs `steps` steps on one stage, and checks every number that arrives or was kept.
Counts run_stage(comm::Communicator& pp, const passes::PipelineOrder& order, int steps) {
  const auto device = runtime::open_device("cpu");
  const PipelineShape& shape = order.shape;
  PipelineLinks links(pp, shape.chunks > 1);
  std::vector<PipelineBytes> bytes;
  for (int c = 0; c < shape.chunks; ++c) {
    const int part = c * shape.stages + pp.rank();
    const int64_t in = part > 0 ? kBytes : 0, out = part + 1 < shape.parts() ? kBytes : 0;
    bytes.push_back(
        {.in = in, .out = out, .out_gradient = out, .in_gradient = in, .kept = kBytes, .late = kBytes});
  }
  PipelineRunner runner(order, bytes, links, *device);
  Counts counts;
  for (int s = 0; s < steps; ++s) {
    runner.run([&](const PipelineAction& a, const PipelineBuffers& b) {
      const int part = a.chunk * shape.stages + pp.rank(), last = shape.parts() - 1;
      const int64_t base = 1000 * s + 100 * a.micro_batch;
      const int64_t in = base + part * (part + 1) / 2, out = in + part + 1;
      const int64_t top = base + (last + 1) * (last + 2) / 2;
      if (a.work == PipelineWork::forward) {
        ++counts.forward;
        if (part > 0) {
          EXPECT_EQ(get(b.in), in);
        }
        if (part < last) put(b.out, out);
        put(b.kept, in);
        return;
      }
      EXPECT_EQ(get(b.kept), in);
      if (part > 0) {
        EXPECT_EQ(get(b.in), in);
      }
      if (part < last) {
        EXPECT_EQ(get(b.out_gradient), top + (last * (last + 1) - part * (part + 1)) / 2);
      }
      if (a.work == PipelineWork::weight_gradient) {
        ++counts.weights;
        EXPECT_EQ(get(b.late), base + part);
        return;
      }
      ++counts.backward;
      if (part > 0) put(b.in_gradient, top + (last * (last + 1) - (part - 1) * part) / 2);
      put(b.late, base + part);
    });
  }
  return counts;
}

TEST(PipelineRunner, EveryScheduleMovesEveryNumber) {
  for (int stages : {2, 3, 4}) {
    for (int micro_batches : {1, 2, 5, 8}) {
      for (int chunks : {1, 2, 3}) {
        for (auto kind : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                          PipelineSchedule::interleaved, PipelineSchedule::zero_bubble}) {
          if (chunks > 1 && kind != PipelineSchedule::interleaved) continue;
          const auto order = passes::make_pipeline_order(
              kind, {.stages = stages, .micro_batches = micro_batches, .chunks = chunks});
          comm::LocalWorld world(stages, {.deadline_ns = 20'000'000'000});
          world.run([&](comm::Communicator& pp) {
            const Counts counts = run_stage(pp, order, 2);
            EXPECT_EQ(counts.forward, 2 * micro_batches * chunks);
            EXPECT_EQ(counts.backward, counts.forward);
            EXPECT_EQ(counts.weights, kind == PipelineSchedule::zero_bubble ? counts.forward : 0);
          });
        }
      }
    }
  }
}

TEST(PipelineRunner, InferenceRunsForwardsOnly) {
  const auto order = passes::make_inference_order({.stages = 3, .micro_batches = 9});
  comm::LocalWorld world(3, {.deadline_ns = 20'000'000'000});
  world.run([&](comm::Communicator& pp) {
    const Counts counts = run_stage(pp, order, 3);
    EXPECT_EQ(counts.forward, 27);
    EXPECT_EQ(counts.backward, 0);
  });
}

TEST(PipelineRunner, AnErrorOnOneStageIsThrownOnAllAndTheNextStepRuns) {
  const auto order =
      passes::make_pipeline_order(PipelineSchedule::one_f_one_b, {.stages = 3, .micro_batches = 4});
  comm::LocalWorld world(3, {.deadline_ns = 20'000'000'000});
  std::atomic<int> thrown{0};
  world.run([&](comm::Communicator& pp) {
    const auto device = runtime::open_device("cpu");
    PipelineLinks links(pp, false);
    const int64_t in = pp.rank() > 0 ? 8 : 0, out = pp.rank() < 2 ? 8 : 0;
    PipelineRunner runner(order, {{.in = in, .out = out, .out_gradient = out, .in_gradient = in}}, links,
                          *device);
    try {
      runner.run([&](const PipelineAction& a, const PipelineBuffers&) {
        if (pp.rank() == 1 && a.micro_batch == 2) base::fail_invalid("bad token: ", 77);
      });
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find("bad token: 77"), std::string::npos) << e.what();
      EXPECT_EQ(std::string(e.what()).find("pipeline stage 1") == std::string::npos, pp.rank() == 1);
      ++thrown;
    }
    runner.run([](const PipelineAction&, const PipelineBuffers&) {});
  });
  EXPECT_EQ(thrown, 3);
}

TEST(PipelineRunner, AStageThatIsGoneEndsTheOthers) {
  const auto order =
      passes::make_pipeline_order(PipelineSchedule::one_f_one_b, {.stages = 3, .micro_batches = 4});
  comm::LocalWorld world(3, {.deadline_ns = 20'000'000'000});
  std::atomic<int> unavailable{0};
  const auto body = [&](comm::Communicator& pp) {
    const auto device = runtime::open_device("cpu");
    PipelineLinks links(pp, false);
    if (pp.rank() == 2) base::fail(base::ErrorCode::exhausted, "no memory");
    const int64_t in = pp.rank() > 0 ? 8 : 0;
    PipelineRunner runner(order, {{.in = in, .out = 8, .out_gradient = 8, .in_gradient = in}}, links,
                          *device);
    try {
      runner.run([](const PipelineAction&, const PipelineBuffers&) {});
    } catch (const base::Error& e) {
      if (e.code() == base::ErrorCode::unavailable) ++unavailable;
      throw;
    }
  };
  EXPECT_THROW(world.run(body), base::Error);
  EXPECT_EQ(unavailable, 2);
}

TEST(PipelineRunner, AStuckStageIsReportedWithTheLayer) {
  const auto order =
      passes::make_pipeline_order(PipelineSchedule::one_f_one_b, {.stages = 2, .micro_batches = 2});
  std::string report;
  std::mutex mutex;
  std::atomic<bool> is_reported{false};
  comm::LocalWorld world(2, {.deadline_ns = 200'000'000, .on_stuck = [&](const std::string& text) {
                               const std::lock_guard lock(mutex);
                               report += text;
                               is_reported = true;
                               is_reported.notify_all();
                             }});
  const auto body = [&](comm::Communicator& pp) {
    const auto device = runtime::open_device("cpu");
    PipelineLinks links(pp, false);
    const int64_t in = pp.rank() > 0 ? 8 : 0, out = pp.rank() < 1 ? 8 : 0;
    const PipelineBytes bytes{.in = in,
                              .out = out,
                              .out_gradient = out,
                              .in_gradient = in,
                              .first_layer = base::concat("first of ", pp.rank()),
                              .last_layer = base::concat("last of ", pp.rank())};
    PipelineRunner runner(order, {bytes}, links, *device);
    runner.run([&](const PipelineAction&, const PipelineBuffers&) {
      if (pp.rank() == 1) is_reported.wait(false);
    });
  };
  EXPECT_THROW(world.run(body), base::Error);
  EXPECT_NE(report.find("last of 0"), std::string::npos) << report;
}

/// Work that takes time without a core; a busy machine can only prolong it.
TEST(PipelineRunner, TheBubbleIsTheTimeWithoutWork) {
  using namespace std::chrono_literals;
  for (auto kind : {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble}) {
    const auto order = passes::make_pipeline_order(kind, {.stages = 4, .micro_batches = 8});
    comm::LocalWorld world(4, {.deadline_ns = 20'000'000'000});
    world.run([&](comm::Communicator& pp) {
      const auto device = runtime::open_device("cpu");
      PipelineLinks links(pp, false);
      const int64_t in = pp.rank() > 0 ? 8 : 0, out = pp.rank() < 3 ? 8 : 0;
      PipelineRunner runner(order, {{.in = in, .out = out, .out_gradient = out, .in_gradient = in}}, links,
                            *device);
      const PipelineReport report = runner.run([](const PipelineAction& a, const PipelineBuffers&) {
        std::this_thread::sleep_for(a.work == PipelineWork::backward ? 20ms : 10ms);
      });
      // In units of 10 ms: each stage works for 24, and waits for 9 or 3.
      EXPECT_GE(report.seconds, kind == PipelineSchedule::one_f_one_b ? 0.33 : 0.27);
      EXPECT_EQ(report.predicted, passes::simulate(order, report.times).bubble);
      ASSERT_EQ(report.times.parts.size(), 4u);
      double busy = 0;
      for (const auto& part : report.times.parts) {
        EXPECT_GE(part.forward, 0.01);
        busy += 8 * (part.forward + part.backward + part.input_gradient + part.weight_gradient);
      }
      EXPECT_GE(busy, 4 * 0.24);
      EXPECT_NEAR(report.bubble, 1 - busy / (4 * report.seconds), 1e-9);
      EXPECT_GT(report.bubble, 0);
    });
  }
}

}  // namespace
}  // namespace trireme::engine
