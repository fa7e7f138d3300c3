// Tests the processors chosen for a team: one per member, unchanged where possible.
#include "base/threads/team_seats.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/machine/busy_cpus.h"

namespace trireme::base {
namespace {

cpu_set_t set_of(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return set;
}

std::vector<int> list_of(const cpu_set_t& set) {
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> assigned(const std::vector<int>& usable, std::vector<Seat> seats) {
  assign_seats(set_of(usable), seats);
  std::vector<int> cpus;
  for (const Seat& seat : seats) cpus.push_back(seat.cpu);
  return cpus;
}

TEST(TeamSeats, SleepersKeepTheirsUnlessSomebodyElseHasIt) {
  using Cpus = std::vector<int>;
  EXPECT_EQ(assigned({0, 1}, {{0}, {1, true}}), (Cpus{0, 1}));
  EXPECT_EQ(assigned({0, 1}, {{1}, {1, true}}), (Cpus{1, 0}));  // the caller moved to the sleeper's processor
  EXPECT_EQ(assigned({0, 1, 2, 3}, {{0}, {1, true}, {1, true}, {3, true}}), (Cpus{0, 1, 2, 3}));
  EXPECT_EQ(assigned({0, 1, 2, 3}, {{0}, {2, true}, {2}, {-1, true}}),
            (Cpus{0, 1, 2, 3}));                                               // member 2 is awake there
  EXPECT_EQ(assigned({4, 6}, {{4}, {0, true}, {6, true}}), (Cpus{4, -1, 6}));  // more members than processors
}

TEST(TeamSeats, WakeOnTheirOwnOrOnOneThatIsNobodys) {
  const std::vector<Seat> two{{0}, {1, true}}, three{{0}, {-1, true}, {1, true}};
  EXPECT_EQ(list_of(waking_cpus(set_of({0, 1}), two, 1)), (std::vector<int>{1}));
  EXPECT_EQ(list_of(waking_cpus(set_of({0, 1, 2, 3}), two, 1)), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(list_of(waking_cpus(set_of({0, 1}), three, 1)), (std::vector<int>{1}));
  EXPECT_EQ(list_of(waking_cpus(set_of({0}), {{{0}, {-1, true}}}, 1)), (std::vector<int>{0}));
}

// A thread that is bound to one processor and is counted as computing there.
class Neighbour {
 public:
  explicit Neighbour(int cpu)
      : thread_([this, cpu] {
          const cpu_set_t one = set_of({cpu});
          EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
          const BusyCpu busy = BusyCpu::here();
          ready_.store(true);
          ready_.notify_all();
          over_.wait(false);
        }) {
    ready_.wait(false);
  }
  ~Neighbour() {
    over_.store(true);
    over_.notify_all();
    thread_.join();
  }

 private:
  std::atomic<bool> ready_{false}, over_{false};
  std::thread thread_;
};

TEST(TeamSeats, StayAwayFromOtherTeams) {
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  const std::vector<int> cpus = list_of(all);
  if (cpus.size() < 3) GTEST_SKIP() << "needs three processors";
  const std::vector<Seat> team{{cpus[0]}, {cpus[1], true}};
  EXPECT_EQ(list_of(without_others(all, team)), cpus);
  const Neighbour neighbour(cpus[1]);
  std::vector<int> others = cpus;
  others.erase(others.begin() + 1);
  EXPECT_EQ(list_of(without_others(all, team)), others);
  // A member of the team is no neighbour. Neighbours that leave too few processors for the team are ignored.
  EXPECT_EQ(list_of(without_others(all, std::vector<Seat>{{cpus[0]}, {cpus[1]}})), cpus);
  EXPECT_EQ(list_of(without_others(all, std::vector<Seat>(cpus.size(), {-1, true}))), cpus);
}

}  // namespace
}  // namespace trireme::base
