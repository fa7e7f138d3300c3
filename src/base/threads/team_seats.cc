// Decides on which processors the sleeping members of a thread team wake.
#include "base/threads/team_seats.h"

#include <algorithm>

#include "base/machine/busy_cpus.h"

namespace trireme::base {
namespace {

bool holds(const cpu_set_t& set, int cpu) { return cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &set); }

}  // namespace

cpu_set_t without_others(const cpu_set_t& usable, std::span<const Seat> seats) {
  cpu_set_t free = usable;
  for (int cpu = 0, left = CPU_COUNT(&usable); left > 0; ++cpu) {
    if (!CPU_ISSET(cpu, &usable)) continue;
    --left;
    const int busy = busy_threads(cpu);
    if (busy == 0) continue;
    const auto own = std::count_if(seats.begin(), seats.end(),
                                   [&](const Seat& seat) { return !seat.asleep && seat.cpu == cpu; });
    if (busy > own) CPU_CLR(cpu, &free);
  }
  return CPU_COUNT(&free) < static_cast<int>(seats.size()) ? usable : free;
}

void assign_seats(const cpu_set_t& usable, std::span<Seat> seats) {
  cpu_set_t free = usable;
  for (const Seat& seat : seats) {
    if (!seat.asleep && holds(free, seat.cpu)) CPU_CLR(seat.cpu, &free);
  }
  for (Seat& seat : seats) {
    if (!seat.asleep) continue;
    if (holds(free, seat.cpu)) {
      CPU_CLR(seat.cpu, &free);
    } else {
      seat.cpu = -1;
    }
  }
  int next = 0;
  for (Seat& seat : seats) {
    if (!seat.asleep || seat.cpu >= 0) continue;
    while (next < CPU_SETSIZE && !CPU_ISSET(next, &free)) ++next;
    if (next == CPU_SETSIZE) return;
    seat.cpu = next++;
  }
}

cpu_set_t waking_cpus(const cpu_set_t& usable, std::span<const Seat> seats, size_t of) {
  cpu_set_t mine = usable;
  for (size_t i = 0; i < seats.size(); ++i) {
    if (i != of && holds(mine, seats[i].cpu)) CPU_CLR(seats[i].cpu, &mine);
  }
  if (CPU_COUNT(&mine) > 0) return mine;
  mine = usable;
  if (holds(mine, seats[0].cpu) && CPU_COUNT(&mine) > 1) CPU_CLR(seats[0].cpu, &mine);
  return mine;
}

}  // namespace trireme::base
