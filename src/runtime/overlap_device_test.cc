// Device collectives aside of the computation: same bits as in line for every order that events allow, and
// wrong ones when a wait is missing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "backend/cuda/device/cuda_device.h"
#include "ops/collective/test_ranks_cpu.h"
#include "runtime/executor.h"
#include "runtime/test_graphs.h"

namespace trireme::runtime {
namespace {

using compile::Program;
using compile::SlotId;
using compile::Step;
using ops::testing::Ranks;
using tensor::Tensor;
using Change = std::function<void(Program&)>;

struct Trial {
  bool overlap = true, graphs = true;
  cuda::EmulatedPlan plan = {};
  Change change = {};
};

/// The program of one rank on an emulated device, with its memory.
struct BoundOnDevice {
  BoundOnDevice(const ir::Graph& graph, comm::Mesh& mesh, const Trial& setup)
      : device(cuda::open_emulated(mesh.world().rank(), setup.plan)), stream(device->open_stream(pool)) {
    auto made = std::make_shared<Program>(compile::compile(
        graph, {.on = tensor::DeviceKind::cuda, .device = device.get(), .overlap = setup.overlap}, packs));
    if (setup.change) setup.change(*made);
    program = made;
    on = bind_device(*device, pool, packs, setup.graphs, &mesh);
    std::vector<void*> addresses;
    for (const SlotId id : program->states) {
      const std::vector<std::byte> zeros(static_cast<size_t>(program->slot(id).bytes));
      states.push_back(device->allocate(program->slot(id).bytes));
      addresses.push_back(states.back().get());
      stream->upload(addresses.back(), zeros.data(), program->slot(id).bytes);
      stream->synchronize();
    }
    executor.emplace(program, addresses, &mesh, on);
    arena = device->allocate(executor->arena_bytes());
    executor->bind_arena(arena.get());
    for (const SlotId id : program->outputs)
      outputs.push_back(Tensor::zeros(program->slot(id).dtype, program->slot(id).dims));
  }

  std::vector<Tensor>& run(const Tensor& input, Trace* trace = nullptr) {
    const std::vector<const void*> in{input.raw()};
    std::vector<void*> out;
    for (Tensor& t : outputs) out.push_back(t.mutable_raw());
    executor->run(in, out, *stream, trace);
    return outputs;
  }

  base::SharedCache packs;
  base::ThreadPool pool{1};
  std::unique_ptr<tensor::Device> device;
  std::unique_ptr<tensor::Stream> stream;
  std::shared_ptr<const Program> program;
  DeviceBinding on;
  std::vector<std::shared_ptr<void>> states;
  std::optional<Executor> executor;
  std::shared_ptr<void> arena;
  std::vector<Tensor> outputs;
};

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].raw(), b[i].raw(), static_cast<size_t>(a[i].bytes())) != 0) return false;
  }
  return true;
}

class OverlapOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::has_toolkit()) GTEST_SKIP() << "emulated devices are in builds without the toolkit";
  }

  /// Of `runs` runs, the number in which every rank had the same bits as with in-line collectives.
  static int agreeing_runs(const std::function<ir::Graph(int rank)>& graph, const Tensor& x,
                           const Trial& setup, int runs) {
    std::atomic<int> differing{0};
    Ranks(tensor::MeshShape({{"dp", 2}})).run([&](Ranks::Rank& rank) {
      const ir::Graph mine = graph(rank.mesh.world().rank());
      BoundOnDevice in_line(mine, rank.mesh, {.overlap = false, .graphs = false}),
          aside(mine, rank.mesh, setup);
      for (int i = 0; i < runs; ++i) {
        const std::vector<Tensor> want = in_line.run(x);
        if (!same(want, aside.run(x))) ++differing;
      }
    });
    return 2 * runs - differing.load();
  }
};

TEST_F(OverlapOnDevice, BitsAreThoseOfCollectivesInLineInEveryOrder) {
  using cuda::EmulatedOrder;
  const Tensor x = ops::testing::random_tensor(tensor::DType::f32, {8, 8}, -1, 1, 5);
  for (const cuda::EmulatedPlan plan :
       {cuda::EmulatedPlan{}, cuda::EmulatedPlan{EmulatedOrder::late},
        cuda::EmulatedPlan{EmulatedOrder::early}, cuda::EmulatedPlan{EmulatedOrder::shuffled, 3},
        cuda::EmulatedPlan{EmulatedOrder::shuffled, 4}}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const auto graph = [&](int rank) { return RandomGraph(seed, 2, rank).graph; };
      EXPECT_EQ(agreeing_runs(graph, x, {.plan = plan}, 4), 8)
          << "seed " << seed << ", order " << static_cast<int>(plan.order);
    }
  }
}

TEST_F(OverlapOnDevice, AProgramThatForgetsToWaitGivesWrongBits) {
  const auto graph = [](int) { return backward(4, 16); };
  const Tensor x = ops::testing::random_tensor(tensor::DType::f32, {16, 16}, -0.3, 0.3, 5);
  const Change forget = [](Program& p) {
    for (Step& step : p.steps) step.after_aside = -1;
  };
  const cuda::EmulatedPlan late{cuda::EmulatedOrder::late};
  EXPECT_EQ(agreeing_runs(graph, x, {.graphs = false, .plan = late}, 2), 4);
  EXPECT_EQ(agreeing_runs(graph, x, {.graphs = false, .plan = late, .change = forget}, 2), 0);
}

/// No step waits for a result that is reduced last; the end of the run does.
TEST_F(OverlapOnDevice, ResultsThatNoStepWaitsForAreThereAtTheEnd) {
  const auto graph = [](int) {
    ir::Graph g;
    const ir::Attrs group{{"axes", std::string("dp")}, {"parts", std::vector<int64_t>{2}}};
    const ir::ValueId x = g.add_input("x", {tensor::DType::f32, {16, 16}});
    const ir::ValueId y = g.add1(ops::table().need("matmul"), {x, x}, {}, "product");
    g.add_output(g.add1(ops::table().need("all_reduce"), {y}, group, "sum"), "sum");
    g.add_output(g.add1(ops::table().need("tanh"), {y}, {}, "beside"), "beside");
    g.sort();
    return g;
  };
  const Change unawaited = [](Program& p) {
    for (Step& step : p.steps) step.is_aside = !step.axes.empty(), step.after_aside = -1;
  };
  const Tensor x = ops::testing::random_tensor(tensor::DType::f32, {16, 16}, -0.3, 0.3, 5);
  const cuda::EmulatedPlan late{cuda::EmulatedOrder::late};
  EXPECT_EQ(agreeing_runs(graph, x, {.graphs = false, .plan = late, .change = unawaited}, 2), 4);
}

TEST_F(OverlapOnDevice, ProgramsThatMeetRanksAreRecorded) {
  Ranks(tensor::MeshShape({{"dp", 2}})).run([&](Ranks::Rank& rank) {
    BoundOnDevice aside(backward(3, 16), rank.mesh, {});
    const Tensor x = ops::testing::random_tensor(tensor::DType::f32, {16, 16}, -0.3, 0.3, 5);
    const std::vector<Tensor> want = aside.run(x);
    std::vector<Tensor> kept;
    for (const Tensor& t : want) kept.push_back(t.clone());
    for (int i = 0; i < 3; ++i) base::check(same(kept, aside.run(x)), "run ", i);
    base::check(aside.executor->is_recorded(), "nothing was recorded");
  });
}

TEST_F(OverlapOnDevice, TheTraceShowsStreamsBesideEachOther) {
  std::atomic<int> overlapping{0};
  Ranks(tensor::MeshShape({{"dp", 2}})).run([&](Ranks::Rank& rank) {
    BoundOnDevice aside(backward(6, 64), rank.mesh, {});
    // A late rank leaves the other's collectives waiting while that one continues to compute. The delay grows
    // with each run, in case the machine gives these threads little time.
    for (int run = 0; run < 7; ++run) {
      Trace trace;
      if (rank.mesh.world().rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5 << run));
      aside.run(ops::testing::random_tensor(tensor::DType::f32, {64, 64}, -0.1, 0.1), &trace);
      int64_t last_end[3] = {0, 0, 0};
      for (const Span& span : trace.spans) {
        int64_t& end = last_end[static_cast<size_t>(span.lane)];
        base::check(span.begin_ns >= end && span.end_ns >= span.begin_ns, "spans of a stream overlap");
        end = span.end_ns;
      }
      for (const Span& a : trace.spans) {
        if (a.lane != Lane::communication) continue;
        for (const Span& b : trace.spans)
          overlapping +=
              b.lane == Lane::compute && b.step >= 0 && b.begin_ns < a.end_ns && a.begin_ns < b.end_ns;
      }
      const Communication& c = aside.executor->communication();
      base::check(c.total_ns > 0 && c.exposed_ns >= 0, "times");
    }
  });
  EXPECT_GT(overlapping.load(), 0);
}

TEST_F(OverlapOnDevice, ARankThatIsGoneIsNamedWithTheOthersUnharmed) {
  comm::LocalWorld world(2);
  try {
    world.run([&](comm::Communicator& all) {
      comm::Mesh mesh(all, tensor::MeshShape({{"dp", 2}}));
      BoundOnDevice aside(backward(3, 16), mesh, {});
      if (all.rank() == 1) base::fail(base::ErrorCode::internal, "out of fuel");
      try {
        aside.run(ops::testing::random_tensor(tensor::DType::f32, {16, 16}, -1, 1));
        base::fail(base::ErrorCode::internal, "nothing thrown");
      } catch (const base::Error& e) {
        base::check(e.code() == base::ErrorCode::unavailable, e.message());
        throw;
      }
    });
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_NE(e.message().find("out of fuel"), std::string::npos) << e.message();
  }
}

TEST_F(OverlapOnDevice, AWatchdogNamesRankCollectiveAndLayer) {
  std::string report;
  std::atomic<bool> is_reported{false};
  comm::LocalWorld world(2, {.deadline_ns = 500'000'000, .on_stuck = [&](const std::string& r) {
                               report = r;
                               is_reported = true;
                               is_reported.notify_all();
                             }});
  EXPECT_THROW(world.run([&](comm::Communicator& all) {
    comm::Mesh mesh(all, tensor::MeshShape({{"dp", 2}}));
    BoundOnDevice aside(backward(3, 16), mesh, {});
    if (all.rank() == 1) {  // seems to compute forever
      is_reported.wait(false);
      return;
    }
    aside.run(ops::testing::random_tensor(tensor::DType::f32, {16, 16}, -1, 1));
  }),
               base::Error);
  EXPECT_NE(report.find("all_reduce"), std::string::npos) << report;
  EXPECT_NE(report.find("rank 1"), std::string::npos) << report;
}

}  // namespace
}  // namespace trireme::runtime
