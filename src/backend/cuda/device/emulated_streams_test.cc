// Streams of the emulated device: the order that events impose, effects of a missing wait, captures of
// several streams.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "backend/cuda/device/emulated_stream.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

using std::chrono::milliseconds;

std::vector<EmulatedPlan> all_orders() {
  std::vector<EmulatedPlan> plans{{}, {EmulatedOrder::late}, {EmulatedOrder::early}};
  for (uint64_t seed = 0; seed < 20; ++seed) plans.push_back({EmulatedOrder::shuffled, seed});
  return plans;
}

/// Which wait a trial omits.
enum class Dropped { none, before_communication, after_communication };

/// Two streams pass a number back and forth: compute adds one, communication doubles it.
class Trial {
 public:
  explicit Trial(EmulatedPlan plan)
      : device(open_emulated(3, plan)),
        memory(device->allocate(sizeof(int64_t))),
        host(device->allocate_host(sizeof(int64_t))),
        compute(open(pool, StreamRole::compute)),
        communication(open(other, StreamRole::communication)),
        ready(compute->make_event()),
        reduced(compute->make_event()) {}

  std::unique_ptr<CudaStream> open(base::ThreadPool& of, StreamRole role) {
    return static_cast<CudaDevice&>(*device).open_stream(of, role);
  }
  void change(CudaStream& stream, int64_t factor, int64_t plus, milliseconds late = milliseconds(0)) {
    auto* value = static_cast<int64_t*>(memory.get());
    static_cast<EmulatedStream&>(stream).launch([=](HostGrid&) {
      std::this_thread::sleep_for(late);
      *value = *value * factor + plus;
    });
  }
  void launch(Dropped dropped, milliseconds late = milliseconds(0)) {
    change(*compute, 0, 1);
    for (int i = 0; i < 3; ++i) {
      compute->set(*ready);
      if (dropped != Dropped::before_communication) communication->wait(*ready);
      change(*communication, 2, 0, late);
      communication->set(*reduced);
      if (dropped != Dropped::after_communication) compute->wait(*reduced);
      change(*compute, 1, 1);
    }
  }
  int64_t result() {
    compute->download(host.get(), memory.get(), sizeof(int64_t));
    compute->synchronize();
    communication->synchronize();
    return *static_cast<const int64_t*>(host.get());
  }

  base::ThreadPool pool{1}, other{1};
  std::unique_ptr<tensor::Device> device;
  std::shared_ptr<void> memory, host;
  std::unique_ptr<CudaStream> compute, communication;
  std::unique_ptr<tensor::Event> ready, reduced;
};

constexpr int64_t kWanted = ((1 * 2 + 1) * 2 + 1) * 2 + 1;

TEST(EmulatedStreams, EventsOrderWhatStreamsDo) {
  for (const EmulatedPlan& plan : all_orders()) {
    Trial trial(plan);
    trial.launch(Dropped::none);
    EXPECT_EQ(trial.result(), kWanted) << static_cast<int>(plan.order) << " " << plan.seed;
  }
}

TEST(EmulatedStreams, AMissingWaitGivesAWrongResult) {
  // Work that runs late is read too early; the other trial shows the opposite.
  Trial late({EmulatedOrder::late});
  late.launch(Dropped::after_communication);
  EXPECT_NE(late.result(), kWanted);
  Trial early({EmulatedOrder::early});
  early.launch(Dropped::before_communication);
  EXPECT_NE(early.result(), kWanted);
  for (const Dropped dropped : {Dropped::before_communication, Dropped::after_communication}) {
    int wrong = 0;
    for (const EmulatedPlan& plan : all_orders()) {
      if (plan.order != EmulatedOrder::shuffled) continue;
      Trial trial(plan);
      trial.launch(dropped);
      wrong += trial.result() != kWanted;
    }
    EXPECT_GT(wrong, 5);
  }
}

TEST(EmulatedStreams, NothingRunsBeforeSomebodyWaits) {
  Trial trial({EmulatedOrder::late});
  bool has_run = false;
  trial.compute->call([&] { has_run = true; });
  EXPECT_FALSE(has_run);
  trial.compute->synchronize();
  EXPECT_TRUE(has_run);
}

TEST(EmulatedStreams, CommunicationRunsBesideTheComputation) {
  Trial trial({});
  std::atomic<bool> is_computed{false}, has_seen{false};
  trial.communication->call([&] {
    for (int i = 0; i < 1000 && !is_computed; ++i) std::this_thread::sleep_for(milliseconds(1));
    has_seen = is_computed.load();
  });
  trial.compute->call([&] { is_computed = true; });
  trial.communication->synchronize();
  EXPECT_TRUE(has_seen);
}

TEST(EmulatedStreams, RecordingsHoldTheStreamsThatTheyWaitFor) {
  for (const EmulatedPlan& plan : all_orders()) {
    Trial trial(plan);
    trial.compute->begin_recording();
    trial.launch(Dropped::none);
    const std::unique_ptr<tensor::Recording> recording = trial.compute->end_recording();
    for (int i = 0; i < 3; ++i) {
      recording->replay(*trial.compute);
      EXPECT_EQ(trial.result(), kWanted) << static_cast<int>(plan.order) << " " << plan.seed;
    }
  }
}

TEST(EmulatedStreams, ARecordingThatLeavesAStreamBehindIsRefused) {
  Trial trial({});
  trial.compute->begin_recording();
  trial.launch(Dropped::after_communication);
  EXPECT_THROW(trial.compute->end_recording(), base::Error);
}

TEST(EmulatedStreams, FailuresShowWhereTheStreamIsWaitedFor) {
  for (const EmulatedPlan& plan : all_orders()) {
    Trial trial(plan);
    bool has_followed = false;
    trial.communication->call([] { base::fail_invalid("the ranks disagree"); });
    trial.communication->call([&] { has_followed = true; });
    EXPECT_THROW(trial.communication->synchronize(), base::Error);
    EXPECT_FALSE(has_followed);
    trial.communication->call([&] { has_followed = true; });
    trial.communication->synchronize();
    EXPECT_TRUE(has_followed);
  }
}

TEST(EmulatedStreams, EventsTellTheTimeBetweenThem) {
  for (const EmulatedPlan& plan : {EmulatedPlan{}, EmulatedPlan{EmulatedOrder::late}}) {
    Trial trial(plan);
    const auto begin = trial.communication->record_event();
    trial.communication->call([] { std::this_thread::sleep_for(milliseconds(5)); });
    const auto end = trial.communication->record_event();
    trial.communication->synchronize();
    EXPECT_GE(end->ns_since(*begin), 5'000'000);
  }
}

TEST(EmulatedStreams, OrdersHaveNames) {
  EXPECT_EQ(parse_emulated_plan("late").order, EmulatedOrder::late);
  EXPECT_EQ(parse_emulated_plan("shuffled:7").seed, 7u);
  EXPECT_THROW(parse_emulated_plan("shuffled"), base::Error);
}

TEST(EmulatedDevices, OrdinalsAreDevicesOfTheirOwn) {
  const auto one = open_emulated(0), other = open_emulated(1), again = open_emulated(1);
  EXPECT_NE(one->ordinal(), other->ordinal());
  EXPECT_EQ(static_cast<CudaDevice&>(*other).identity(), static_cast<CudaDevice&>(*again).identity());
}

}  // namespace
}  // namespace trireme::cuda
