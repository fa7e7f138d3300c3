// Tests that computing threads find a processor of their own.
#include "base/machine/busy_cpus.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace trireme::base {
namespace {

cpu_set_t affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

void move_to(int cpu, const cpu_set_t& all) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

TEST(BusyCpus, CountsUntilItGoes) {
  const int before = [] {
    const BusyCpu own = BusyCpu::here();
    EXPECT_GE(own.cpu(), 0);
    EXPECT_GE(busy_threads(own.cpu()), 1);
    return own.cpu();
  }();
  EXPECT_EQ(busy_threads(before), 0);
  EXPECT_EQ(busy_threads(-1), 0);
  EXPECT_EQ(busy_threads(1 << 20), 0);
}

TEST(BusyCpus, MovingOnKeepsOnePlace) {
  BusyCpu a = BusyCpu::here();
  const int cpu = a.cpu();
  BusyCpu b = std::move(a);
  EXPECT_EQ(busy_threads(cpu), 1);
  b = BusyCpu();
  EXPECT_EQ(busy_threads(cpu), 0);
}

TEST(BusyCpus, WhoIsAwayDoesNotCount) {
  const BusyCpu own = BusyCpu::here();
  {
    const AwayFromCpu away;
    EXPECT_EQ(busy_threads(own.cpu()), 0);
  }
  EXPECT_EQ(busy_threads(own.cpu()), 1);
  std::thread([&] {
    const AwayFromCpu nowhere;
    EXPECT_EQ(busy_threads(own.cpu()), 1);
  }).join();
}

// Threads that all start on one processor spread over the available ones and keep their affinity masks.
TEST(BusyCpus, AloneSpreadsThreadsThatMeet) {
  const cpu_set_t all = affinity();
  const int cpus = CPU_COUNT(&all), first = [&] {
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) ++cpu;
    return cpu;
  }();
  if (cpus < 2) GTEST_SKIP() << "one processor";
  std::vector<int> places(static_cast<size_t>(cpus), -1);
  std::atomic<int> seated{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < cpus; ++t) {
    threads.emplace_back([&, t] {
      while (seated.load() != t) std::this_thread::yield();  // the threads take turns
      move_to(first, all);
      // From the second thread on, the processor is busy, even if the system moves threads meanwhile.
      const BusyCpu met = BusyCpu::here();
      const BusyCpu own = BusyCpu::alone();
      places[static_cast<size_t>(t)] = own.cpu();
      const cpu_set_t now = affinity();
      EXPECT_TRUE(CPU_EQUAL(&now, &all));
      seated.fetch_add(1);
      while (seated.load() < cpus) std::this_thread::yield();
    });
  }
  for (std::thread& t : threads) t.join();
  // Each thread is counted twice: where it started and where it moved. None moved to a processor in use.
  for (const int place : places) EXPECT_GE(place, 0);
  const std::set<int> different(places.begin(), places.end());
  EXPECT_GE(static_cast<int>(different.size()), cpus - 1);
}

TEST(BusyCpus, StaysWhereNoneIsFree) {
  const cpu_set_t all = affinity();
  std::vector<std::thread> threads;
  std::atomic<int> ready{0};
  std::atomic<bool> over{false};
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    threads.emplace_back([&, cpu] {
      move_to(cpu, all);
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
      const BusyCpu own = BusyCpu::here();
      ready.fetch_add(1);
      while (!over.load()) std::this_thread::yield();
    });
  }
  while (ready.load() < static_cast<int>(threads.size())) std::this_thread::yield();
  {
    const BusyCpu own = BusyCpu::alone();
    EXPECT_EQ(busy_threads(own.cpu()), 2);
  }
  over.store(true);
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace trireme::base
