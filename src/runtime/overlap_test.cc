// Collectives aside of the computation: same bits as in line, memory that no step touches during an exchange,
// errors of the lane, and hidden time.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "ops/collective/test_ranks_cpu.h"
#include "runtime/executor.h"
#include "runtime/open_device.h"
#include "runtime/test_graphs.h"

namespace trireme::runtime {
namespace {

using compile::Program;
using compile::SlotId;
using compile::Step;
using ops::testing::Ranks;
using tensor::DType;
using tensor::Tensor;

/// The program of one rank, with its memory.
struct BoundOnCpu {
  BoundOnCpu(const ir::Graph& graph, comm::Mesh* mesh, bool overlap)
      : pool(1), device(open_device("cpu")), stream(device->open_stream(pool)) {
    program = std::make_shared<const Program>(compile::compile(graph, {.overlap = overlap}, packs));
    for (const SlotId id : program->states) {
      states.push_back(Tensor::empty(program->slot(id).dtype, program->slot(id).dims));
      std::memset(states.back().mutable_raw(), 0, static_cast<size_t>(states.back().bytes()));
    }
    std::vector<void*> addresses;
    for (Tensor& s : states) addresses.push_back(s.mutable_raw());
    executor.emplace(program, addresses, mesh);
    arena = device->allocate(std::max<int64_t>(64, program->memory.arena_bytes));
    std::memset(arena.get(), 0xff, static_cast<size_t>(program->memory.arena_bytes));
    executor->bind_arena(arena.get());
    for (const SlotId id : program->outputs)
      outputs.push_back(Tensor::empty(program->slot(id).dtype, program->slot(id).dims));
  }

  std::vector<Tensor>& run(const std::vector<Tensor>& inputs, Trace* trace = nullptr) {
    std::vector<const void*> in;
    std::vector<void*> out;
    for (const Tensor& t : inputs) in.push_back(t.raw());
    for (Tensor& t : outputs) out.push_back(t.mutable_raw());
    executor->run(in, out, *stream, trace);
    return outputs;
  }

  base::SharedCache packs;
  base::ThreadPool pool;
  std::unique_ptr<tensor::Device> device;
  std::unique_ptr<tensor::Stream> stream;
  std::shared_ptr<const Program> program;
  std::vector<Tensor> states;
  std::optional<Executor> executor;
  std::shared_ptr<void> arena;
  std::vector<Tensor> outputs;
};

struct Range {
  const void* memory;  // the arena, or a slot's buffer
  int64_t begin, end;
};

/// The byte ranges of one step in the arena and in callers' memory, by kind of access.
std::vector<Range> ranges(const Program& p, const Step& step, bool read, bool written) {
  std::vector<Range> list;
  const auto add = [&](SlotId id) {
    if (id == compile::kNoSlot) return;
    const compile::Slot& root = p.root(id);
    if (root.kind == compile::SlotKind::arena) {
      list.push_back({nullptr, root.offset, root.offset + root.bytes});
    } else if (root.kind != compile::SlotKind::constant) {
      list.push_back({&root, 0, root.bytes});
    }
  };
  for (const SlotId id : step.in) {
    if (read) add(id);
  }
  for (const SlotId id : step.out) {
    if (written) add(id);
  }
  if (written && step.bound.workspace_bytes > 0) {
    list.push_back({nullptr, step.workspace_offset, step.workspace_offset + step.bound.workspace_bytes});
  }
  return list;
}

bool meet(const std::vector<Range>& a, const std::vector<Range>& b) {
  for (const Range& x : a) {
    for (const Range& y : b) {
      if (x.memory == y.memory && x.begin < y.end && y.begin < x.end) return true;
    }
  }
  return false;
}

/// No step that may run concurrently writes what an aside step reads or writes, or reads what it writes.
void expect_apart(const Program& p) {
  const auto count = static_cast<int>(p.steps.size());
  for (int s = 0; s < count; ++s) {
    const Step& aside = p.steps[static_cast<size_t>(s)];
    if (!aside.is_aside) continue;
    ASSERT_GT(aside.until, s);
    for (int t = s + 1; t < aside.until; ++t) {
      const Step& step = p.steps[static_cast<size_t>(t)];
      if (step.is_aside) continue;
      EXPECT_FALSE(meet(ranges(p, step, false, true), ranges(p, aside, true, true)))
          << t << " writes into " << s;
      EXPECT_FALSE(meet(ranges(p, step, true, false), ranges(p, aside, false, true)))
          << t << " reads from " << s;
    }
  }
}

TEST(Overlap, ProgramsKeepApartWhatRunsAtTheSameTime) {
  size_t aside = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    base::SharedCache packs;
    const Program p = compile::compile(RandomGraph(seed, 2, 0).graph, {.overlap = true}, packs);
    aside += steps_aside(p);
    expect_apart(p);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed << "\n" << compile::print_steps(p);
  }
  EXPECT_GT(aside, 200u);
}

TEST(Overlap, BitsAreThoseOfCollectivesInLine) {
  for (const int ranks : {2, 3}) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      Ranks(tensor::MeshShape({{"dp", ranks}})).run([&](Ranks::Rank& rank) {
        const int me = rank.mesh.world().rank();
        const ir::Graph graph = RandomGraph(seed, ranks, me).graph;
        BoundOnCpu in_line(graph, &rank.mesh, false), aside(graph, &rank.mesh, true);
        base::Rng rng(seed + 100 * static_cast<uint64_t>(me));
        for (int run = 0; run < 4; ++run) {
          const Tensor x = ops::testing::random_tensor(DType::f32, {8, 8}, -1, 1, rng.below(1u << 30));
          const std::vector<Tensor>& want = in_line.run({x});
          // A late rank leaves the others' lanes waiting while they continue to compute.
          if (rng.below(2) == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng.below(300)));
          const std::vector<Tensor>& got = aside.run({x});
          for (size_t i = 0; i < want.size(); ++i) {
            base::check(std::memcmp(want[i].raw(), got[i].raw(), static_cast<size_t>(want[i].bytes())) == 0,
                        "output ", i, " of seed ", seed, ", run ", run);
          }
          base::check(std::memcmp(in_line.states[0].raw(), aside.states[0].raw(),
                                  static_cast<size_t>(aside.states[0].bytes())) == 0,
                      "state of seed ", seed);
        }
      });
    }
  }
}

TEST(Overlap, ReductionsBeginWhenTheirGradientIsThere) {
  base::SharedCache packs;
  const Program p = compile::compile(backward(4, 16), {.overlap = true}, packs);
  EXPECT_EQ(steps_aside(p), 4u) << compile::print_steps(p);
  for (size_t s = 0; s < p.steps.size(); ++s) {
    if (!p.steps[s].is_aside) continue;
    EXPECT_EQ(p.steps[s - 1].out[0], p.steps[s].in[0]) << "right behind its producer";
  }
  const Program plain = compile::compile(backward(4, 16), {}, packs);
  EXPECT_EQ(steps_aside(plain), 0u);
}

TEST(Overlap, TimesOfTheLaneAreCounted) {
  Ranks(tensor::MeshShape({{"dp", 2}})).run([&](Ranks::Rank& rank) {
    BoundOnCpu aside(backward(6, 96), &rank.mesh, true);
    Trace trace;
    aside.run({ops::testing::random_tensor(DType::f32, {96, 96}, -0.1, 0.1)}, &trace);
    const Communication& c = aside.executor->communication();
    base::check(c.total_ns > 0 && c.exposed_ns >= 0, "times");
    int64_t lane = 0;
    for (size_t s = 0; s < trace.step_ns.size(); ++s)
      lane += aside.program->steps[s].is_aside ? trace.step_ns[s] : 0;
    base::check(lane == c.total_ns, "the trace holds the lane's times");
  });
}

TEST(Overlap, AFailureOfTheLaneReachesTheCallerAndARankThatIsGoneIsNamed) {
  comm::LocalWorld world(2);
  const auto body = [&](comm::Communicator& all) {
    comm::Mesh mesh(all, tensor::MeshShape({{"dp", 2}}));
    BoundOnCpu aside(backward(3, 16), &mesh, true);
    if (all.rank() == 1) base::fail(base::ErrorCode::internal, "out of fuel");
    try {
      aside.run({ops::testing::random_tensor(DType::f32, {16, 16}, -1, 1)});
      base::fail(base::ErrorCode::internal, "nothing thrown");
    } catch (const base::Error& e) {
      base::check(e.code() == base::ErrorCode::unavailable, e.message());
      throw;
    }
  };
  try {
    world.run(body);
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_NE(e.message().find("out of fuel"), std::string::npos) << e.message();
  }
}

/// The error if each rank binds a different program.
std::string binding_error(const std::function<ir::Graph(int rank)>& graph_of) {
  Ranks ranks(tensor::MeshShape({{"dp", 3}}));
  try {
    ranks.run([&](Ranks::Rank& rank) { BoundOnCpu(graph_of(rank.mesh.world().rank()), &rank.mesh, true); });
    return "";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    return e.message();
  }
}

TEST(Overlap, ProgramsThatDifferAreRefusedBeforeTheyRun) {
  EXPECT_EQ(binding_error([](int) { return backward(2, 16, 3); }), "");
  const std::string size = binding_error([](int rank) { return backward(2, rank == 2 ? 24 : 16, 3); });
  EXPECT_NE(size.find("collective 0 over dp: rank 0 has all_reduce of 'all_reduce' 1024 bytes"),
            std::string::npos)
      << size;
  EXPECT_NE(size.find("rank 2 has all_reduce of 'all_reduce' 2304 bytes"), std::string::npos) << size;
  const std::string missing = binding_error([](int rank) { return backward(rank == 1 ? 2 : 3, 16, 3); });
  EXPECT_NE(missing.find("collective 2 over dp"), std::string::npos) << missing;
  EXPECT_NE(missing.find("rank 1 has nothing"), std::string::npos) << missing;
}

}  // namespace
}  // namespace trireme::runtime
