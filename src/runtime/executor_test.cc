// The executor: addresses, errors that kernels report for bad data, traces.
#include "runtime/executor.h"

#include <gtest/gtest.h>

#include "ops/table.h"
#include "runtime/open_device.h"

namespace trireme::runtime {
namespace {

/// A compiled graph with its device, arena and stream.
struct Fixture {
  explicit Fixture(const std::string& text)
      : pool(2), device(open_device("cpu")), stream(device->open_stream(pool)) {
    ir::Graph g = ir::parse(text, ops::table());
    g.sort();
    executor.emplace(std::make_shared<const compile::Program>(compile::compile(g, {.threads = 2}, packs)));
    arena = device->allocate(executor->program().memory.arena_bytes);
    executor->bind_arena(arena.get());
  }

  base::SharedCache packs;
  base::ThreadPool pool;
  std::unique_ptr<tensor::Device> device;
  std::unique_ptr<tensor::Stream> stream;
  std::shared_ptr<void> arena;
  std::optional<Executor> executor;
};

TEST(Executor, RunsAgainOnOtherBuffers) {
  Fixture f(R"(graph "g"
  %0 = input "x" : f32[3]
  %1 = input "z" : f32[3]
  %2 = sub(%0, %1)
  %3 = abs(%2)
  %4 = add(%3, %3)
  return %4 "y", %2 "d", %0 "x2"
)");
  for (float shift : {0.f, 5.f}) {
    const std::vector<float> x{1 + shift, 2, 3}, z{2, 2, 7};
    std::vector<float> y(3), d(3), copy(3);
    const void* in[]{x.data(), z.data()};
    void* out[]{y.data(), d.data(), copy.data()};
    f.executor->run(in, out, *f.stream);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(d[i], x[i] - z[i]);
      EXPECT_EQ(y[i], 2 * std::abs(x[i] - z[i]));
      EXPECT_EQ(copy[i], x[i]);
    }
  }
}

/// Also where several threads compute; the caller's arithmetic stays as it was.
TEST(Executor, SubnormalNumbersAreZero) {
  constexpr size_t kCount = 1 << 18;
  Fixture f(base::concat("graph \"g\"\n %0 = input \"x\" : f32[", kCount,
                         "]\n %1 = mul(%0, %0)\n return %1 \"y\"\n"));
  std::vector<float> x(kCount, 1e-20f), y(kCount, 1);
  x[7] = 1e-40f, x[9] = 1e-15f;
  const void* in[]{x.data()};
  void* out[]{y.data()};
  f.executor->run(in, out, *f.stream);
  const volatile float kept = 1e-15f;
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(y[i], i == 9 ? kept * kept : 0.0f) << i;
  const volatile float tiny = 1e-20f;
  EXPECT_GT(tiny * tiny, 0.0f);
}

TEST(Executor, FollowsAnArenaThatMoves) {
  Fixture f("graph \"g\"\n %0 = input \"x\" : f32[4]\n %1 = exp(%0)\n %2 = log(%1)\n return %2 \"y\"\n");
  const auto other = f.device->allocate(f.executor->program().memory.arena_bytes);
  f.executor->bind_arena(other.get());
  f.arena.reset();
  const std::vector<float> x{0, 1, 2, 3};
  std::vector<float> y(4);
  const void* in[]{x.data()};
  void* out[]{y.data()};
  f.executor->run(in, out, *f.stream);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], x[i], 1e-5);
}

TEST(Executor, BadDataNamesTheStepAndDoesNotStick) {
  Fixture f(R"(graph "g"
  %0 = input "x" : f32[3]
  %1 = input "i" : i64[2]
  %2 = gather(%0, %1)  # embedding
  %3 = neg(%2)
  return %3 "y"
)");
  const std::vector<float> x{1, 2, 3};
  std::vector<int64_t> i{0, 3};
  std::vector<float> y(2);
  const void* in[]{x.data(), i.data()};
  void* out[]{y.data()};
  Trace trace;
  for (Trace* t : {static_cast<Trace*>(nullptr), &trace}) {
    i[1] = 3;
    try {
      f.executor->run(in, out, *f.stream, t);
      FAIL() << "an index out of range went unnoticed";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
      EXPECT_NE(e.message().find("embedding"), std::string::npos) << e.message();
      EXPECT_NE(e.message().find("gather"), std::string::npos) << e.message();
    }
    i[1] = 2;
    f.executor->run(in, out, *f.stream, t);
    EXPECT_EQ(y, (std::vector<float>{-1, -3}));
  }
  EXPECT_EQ(trace.step_ns.size(), f.executor->program().steps.size());
}

TEST(OpenDevice, RefusesUnknownNames) { EXPECT_THROW(open_device("abacus"), base::Error); }

}  // namespace
}  // namespace trireme::runtime
