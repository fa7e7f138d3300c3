// Programs on a device: results, what is recorded, what runs on the host, and which step errors name.
#include <gtest/gtest.h>

#include "ops/table.h"
#include "runtime/executor.h"
#include "runtime/open_device.h"
#include "runtime/staging.h"

namespace trireme::runtime {
namespace {

/// A device that runs nothing until somebody waits: data that is read too early, or changed while it is being
/// copied, gives a wrong result.
class LazyStream final : public tensor::Stream {
 public:
  using Work = std::function<void()>;
  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cuda; }
  void launch(Work work) { (is_recording_ ? recorded_ : queue_).push_back(std::move(work)); }
  void synchronize() override {
    for (const Work& work : std::exchange(queue_, {})) work();
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    launch([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  }
  bool can_record() const override { return true; }
  void begin_recording() override { is_recording_ = true; }
  std::unique_ptr<tensor::Recording> end_recording() override {
    is_recording_ = false;
    return std::make_unique<Replay>(std::exchange(recorded_, {}));
  }

 private:
  struct Replay final : tensor::Recording {
    explicit Replay(std::vector<Work> all) : work(std::move(all)) {}
    void replay(tensor::Stream& stream) override {
      for (const Work& w : work) static_cast<LazyStream&>(stream).launch(w);
    }
    std::vector<Work> work;
  };
  std::vector<Work> queue_, recorded_;
  bool is_recording_ = false;
};

class LazyDevice final : public tensor::Device {
 public:
  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cuda; }
  std::string describe() const override { return "lazy"; }
  std::shared_ptr<void> allocate(int64_t bytes) override {
    ++allocations;
    return std::shared_ptr<std::byte[]>(new std::byte[static_cast<size_t>(bytes) + 1]);
  }
  std::shared_ptr<void> allocate_host(int64_t bytes) override {
    return std::shared_ptr<std::byte[]>(new std::byte[static_cast<size_t>(bytes) + 1]);
  }
  std::unique_ptr<tensor::Stream> open_stream(base::ThreadPool&) override {
    return std::make_unique<LazyStream>();
  }
  int allocations = 0;
};

constexpr float kBreaksKernels = 7000;

/// `y = x + 1` for f32. Throws if `bad` is set or x begins with kBreaksKernels; reports values above a
/// million as errors.
struct PlusOne {
  const float* x;
  float* y;
  int64_t n;
  const bool* bad;
  int64_t* fault;
  int64_t step;
  void operator()() const {
    base::check(!*bad && (n == 0 || x[0] != kBreaksKernels), "the kernel broke");
    for (int64_t i = 0; i < n; ++i) {
      if (x[i] > 1e6f && fault[0] == 0) fault[0] = step + 1, fault[1] = static_cast<int64_t>(x[i]);
      y[i] = x[i] + 1;
    }
  }
};

/// Operators of the test: "plus_one" has a kernel for the device only, "minus_one" for the CPU only, which
/// reports values above a million too.
ir::OpTable make_table(const bool& bad) {
  ir::Kernel plus{.on = tensor::DeviceKind::cuda, .name = "plus"};
  plus.prepare = [&bad](const ir::KernelInit& init) {
    const int64_t n = tensor::element_count(init.node.in_dims(0));
    return ir::BoundKernel{[n, &bad](const ir::RunArgs& a) {
      static_cast<LazyStream&>(a.stream).launch(PlusOne{
          static_cast<const float*>(a.in[0]), static_cast<float*>(a.out[0]), n, &bad, a.fault, a.step});
    }};
  };
  ir::Kernel minus{.name = "minus"};
  minus.prepare = [](const ir::KernelInit& init) {
    const int64_t n = tensor::element_count(init.node.in_dims(0));
    return ir::BoundKernel{.run = [n](const ir::RunArgs& a) {
      for (int64_t i = 0; i < n; ++i) {
        const float x = static_cast<const float*>(a.in[0])[i];
        if (x > 1e6f) a.status->fail("the value is large", static_cast<int64_t>(x));
        static_cast<float*>(a.out[0])[i] = x - 1;
      }
    }};
  };
  std::vector<ir::OpDef> defs(2);
  defs[0].schema = {.name = "plus_one", .doc = "x + 1", .dims = "...->...", .min_in = 1, .max_in = 1};
  defs[0].kernels.push_back(std::move(plus));
  defs[1].schema = {.name = "minus_one", .doc = "x - 1", .dims = "...->...", .min_in = 1, .max_in = 1};
  defs[1].kernels.push_back(std::move(minus));
  return ir::OpTable(std::move(defs));
}

class DeviceRunTest : public testing::Test {
 protected:
  void SetUp() override {
    stream = device.open_stream(pool);
    on = bind_device(device, pool, packs, true);
  }

  std::shared_ptr<const compile::Program> compile_text(const std::string& text, bool host_fallback = true) {
    ir::Graph g = ir::parse(text, table);
    g.sort();
    return std::make_shared<compile::Program>(compile::compile(
        g, {.on = tensor::DeviceKind::cuda, .device = &device, .host_fallback = host_fallback}, packs));
  }
  Executor& open(const std::string& text) {
    executor.emplace(compile_text(text), std::vector<void*>(), nullptr, on);
    arena = device.allocate(executor->arena_bytes());
    executor->bind_arena(arena.get());
    return *executor;
  }
  std::vector<float> run(const std::vector<float>& x, Trace* trace = nullptr) {
    std::vector<float> y(x.size());
    const void* in[]{x.data()};
    void* out[]{y.data()};
    executor->run(in, out, *stream, trace);
    return y;
  }
  std::string error_of(const std::vector<float>& x) {
    try {
      run(x);
    } catch (const base::Error& e) {
      return e.message();
    }
    return "";
  }

  bool bad = false;
  ir::OpTable table = make_table(bad);
  base::ThreadPool pool{2};
  base::SharedCache packs;
  LazyDevice device;
  std::unique_ptr<tensor::Stream> stream;
  DeviceBinding on;
  std::shared_ptr<void> arena;
  std::optional<Executor> executor;
};

using Floats = std::vector<float>;

constexpr const char* kThreeSteps =
    "graph \"three\"\n %0 = input \"x\" : f32[3]\n %1 = plus_one(%0)  # first\n %2 = plus_one(%1)  # second\n"
    " %3 = plus_one(%2)  # third\n return %3 \"y\"\n";
constexpr const char* kOverTheHost =
    "graph \"host\"\n %0 = input \"x\" : f32[3]\n %1 = plus_one(%0)\n %2 = minus_one(%1)  # down\n"
    " %3 = plus_one(%2)\n return %3 \"y\"\n";

TEST_F(DeviceRunTest, TheSecondRunIsRecordedAndReplayedFromThenOn) {
  Executor& e = open(kThreeSteps);
  EXPECT_EQ(run({1, 2, 3}), (Floats{4, 5, 6}));
  EXPECT_FALSE(e.is_recorded());
  for (float shift : {0.f, 10.f, 20.f}) {
    EXPECT_EQ(run({1 + shift, 2, 3}), (Floats{4 + shift, 5, 6}));
    EXPECT_TRUE(e.is_recorded());
  }
  const auto other = device.allocate(e.arena_bytes());
  e.bind_arena(other.get());
  EXPECT_FALSE(e.is_recorded());
  EXPECT_EQ(run({7, 2, 3}), (Floats{10, 5, 6}));
}

TEST_F(DeviceRunTest, StepsWithoutAKernelRunOnTheHost) {
  Executor& e = open(kOverTheHost);
  EXPECT_EQ(e.program().host_operators(), "minus_one");
  EXPECT_NE(compile::print_steps(e.program()).find("kernel=host:minus"), std::string::npos);
  EXPECT_NE(compile::print_steps(e.program()).find("2 steps; on the host: 1 (minus_one)"), std::string::npos);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run({1, 2, 3}), (Floats{2, 3, 4}));
  EXPECT_FALSE(e.is_recorded());
}

TEST_F(DeviceRunTest, WithoutTheFallbackTheNodeIsNamed) {
  try {
    compile_text(kOverTheHost, false);
    FAIL() << "accepted";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::unsupported);
    EXPECT_NE(e.message().find("'down' (minus_one), and the host fallback is off"), std::string::npos)
        << e.message();
  }
}

TEST_F(DeviceRunTest, BadDataNamesTheStep) {
  open(kThreeSteps);
  run({1, 2, 3});
  for (int i = 0; i < 2; ++i) {
    const std::string error = error_of({1, 2e6f, 3});
    EXPECT_NE(error.find("step 0 'first' (plus_one, kernel plus)"), std::string::npos) << error;
    EXPECT_NE(error.find("2000000"), std::string::npos) << error;
    EXPECT_EQ(run({1, 2, 3}), (Floats{4, 5, 6}));
  }
}

TEST_F(DeviceRunTest, BadDataOfDeviceAndHostIsForgottenTogether) {
  open(kOverTheHost);
  for (int i = 0; i < 2; ++i) {
    const std::string error = error_of({1, 2e6f, 3});
    EXPECT_NE(error.find("step 1 'down'"), std::string::npos) << error;
    EXPECT_EQ(run({1, 2, 3}), (Floats{2, 3, 4}));
  }
}

TEST_F(DeviceRunTest, BadDataIsForgottenWhereAnotherStepBreaks) {
  open(kThreeSteps);
  for (int i = 0; i < 3; ++i) {  // the second run is recorded
    const std::string error = error_of({kBreaksKernels - 1, 2e6f, 3});
    EXPECT_NE(error.find("step 1 'second'"), std::string::npos) << error;
    EXPECT_EQ(run({1, 2, 3}), (Floats{4, 5, 6}));
  }
}

TEST_F(DeviceRunTest, AFailureIsFoundStepByStep) {
  open(kThreeSteps);
  bad = true;
  EXPECT_NE(error_of({1, 2, 3}).find("program 'three', then run step by step: step 0 'first'"),
            std::string::npos);
  bad = false;
  run({1, 2, 3});
  run({1, 2, 3});
  bad = true;
  const std::string error = error_of({1, 2, 3});
  EXPECT_NE(error.find("program 'three', replayed, then run step by step: step 0 'first'"), std::string::npos)
      << error;
  bad = false;
  EXPECT_EQ(run({1, 2, 3}), (Floats{4, 5, 6}));
}

TEST_F(DeviceRunTest, ATraceHasATimeForEachStep) {
  open(kOverTheHost);
  Trace trace;
  EXPECT_EQ(run({1, 2, 3}, &trace), (Floats{2, 3, 4}));
  ASSERT_EQ(trace.step_ns.size(), 3u);
  for (int64_t ns : trace.step_ns) EXPECT_GE(ns, 0);
}

TEST_F(DeviceRunTest, LargeInputsAndResultsGoInChunks) {
  // 10 MB: three chunks, the last one short.
  constexpr int64_t kCount = 2'500'003;
  open("graph \"g\"\n %0 = input \"x\" : f32[2500003]\n %1 = plus_one(%0)\n return %1 \"y\"\n");
  Floats x(kCount);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 100'000);
  const Floats y = run(x);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], x[i] + 1) << i;
}

TEST_F(DeviceRunTest, ProgramsShareConstantsOnTheDevice) {
  const std::string text =
      "graph \"g\"\n %0 = input \"x\" : f32[4]\n %1 = param \"w\" : f32[4]{1, 2, 3, 4}\n %2 = plus_one(%1)\n"
      " return %2 \"y\"\n";
  const auto program = compile_text(text);
  Executor first(program, {}, nullptr, on);
  const int before = device.allocations;
  Executor second(program, {}, nullptr, on);
  EXPECT_EQ(device.allocations, before);
  arena = device.allocate(first.arena_bytes());
  for (Executor* e : {&first, &second}) {
    e->bind_arena(arena.get());
    Floats x(4), y(4);
    const void* in[]{x.data()};
    void* out[]{y.data()};
    e->run(in, out, *stream);
    EXPECT_EQ(y, (Floats{2, 3, 4, 5}));
  }
}

TEST(DeviceNames, UnknownOnesAreRefused) {
  EXPECT_THROW(open_device("gpu"), base::Error);
  EXPECT_THROW(open_device("cuda:x"), base::Error);
  EXPECT_EQ(kind_of_device("cpu"), tensor::DeviceKind::cpu);
  EXPECT_EQ(kind_of_device("cuda:3"), tensor::DeviceKind::cuda);
  EXPECT_EQ(kind_of_device("emulated"), tensor::DeviceKind::cuda);
  EXPECT_THROW(kind_of_device("tpu"), base::Error);
}

}  // namespace
}  // namespace trireme::runtime
