// On which processors the sleeping members of a team wake: never two on one while there are others.
#pragma once

#include <sched.h>

#include <span>

namespace trireme::base {

/// Where each member ran last (-1: nowhere yet), and whether it sleeps. Member 0 is the caller, who is awake.
struct Seat {
  int cpu = -1;
  bool asleep = false;
};

/// The processors on which no other team computes (see BusyCpu); all of them where too few would be left for
/// this one.
cpu_set_t without_others(const cpu_set_t& usable, std::span<const Seat> seats);

/// Gives members a processor each, as far as there are: those that are awake keep theirs, sleepers keep the
/// one they ran on unless somebody else has it. -1 for whom none is left.
void assign_seats(const cpu_set_t& usable, std::span<Seat> seats);

/// Where the member `of` may wake once seats are assigned: on its own, or on one that is nobody's. Anywhere
/// beside the caller if it has none; anywhere if there is but the caller's.
cpu_set_t waking_cpus(const cpu_set_t& usable, std::span<const Seat> seats, size_t of);

}  // namespace trireme::base
