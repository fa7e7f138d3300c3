// The ring buffer of recorded operations, and the search for the rank that holds up a group.
#include "comm/flight_recorder.h"

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/error.h"

namespace trireme::comm {
namespace {

using Ranks = std::span<const RankFlight>;

bool under_way(const std::optional<Flight>& f) { return f && f->end_ns == 0; }
bool waits(const std::optional<Flight>& f) { return under_way(f) && f->start_ns == 0; }

std::string names_of(Ranks ranks, const std::vector<size_t>& which) {
  std::string out = which.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < which.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(ranks[which[i]].world_rank);
  }
  return out;
}

/// The ranks that must arrive before `waiting` can start: those behind in a collective's sequence, or the
/// peer of an exchange.
std::vector<size_t> missing_for(Ranks ranks, size_t waiting_rank) {
  const Flight& waiting = *ranks[waiting_rank].last;
  const int me = static_cast<int>(waiting_rank);
  std::vector<size_t> missing;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::optional<Flight>& f = ranks[r].last;
    if (!waits(waiting)) {  // all have arrived: only an unresponsive rank can hold it up
      if (!ranks[r].answers) missing.push_back(r);
    } else if (waiting.what == Collective::exchange) {
      const int rank = static_cast<int>(r);
      const bool there = f && f->what == Collective::exchange && f->end_ns == 0;
      const bool receives = there && f->from == me, sends = there && f->to == me;
      const bool is_missing = (rank == waiting.to && !receives) || (rank == waiting.from && !sends);
      if (is_missing) missing.push_back(r);
    } else if (!f || f->sequence < waiting.sequence) {
      missing.push_back(r);
    }
  }
  return missing;
}

std::string last_of(const RankFlight& rank) {
  const std::optional<Flight>& f = rank.last;
  if (!rank.answers) return "does not answer";
  if (!f) return "has done nothing in this group";
  return (f->end_ns != 0 ? "last finished " : "is in ") + f->describe();
}

std::string seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", static_cast<double>(ns) / base::kNsPerSecond);
  return text;
}

}  // namespace

std::string_view to_string(Collective what) {
  switch (what) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_gather: return "all_gather";
    case Collective::broadcast: return "broadcast";
    case Collective::all_to_all: return "all_to_all";
    case Collective::barrier: return "barrier";
    case Collective::split: return "split";
    case Collective::finish: return "the end of the rank";
    case Collective::exchange: return "exchange";
  }
  return "?";
}

std::string Flight::describe() const {
  std::string name(to_string(what));
  if (what != Collective::exchange) {
    name += " #" + std::to_string(sequence);
  } else {
    if (to >= 0) name += " to " + std::to_string(to);
    if (from >= 0) name += " from " + std::to_string(from);
  }
  if (bytes > 0) name += " of " + std::to_string(bytes) + " bytes";
  if (!source().empty()) name += base::concat(" for layer '", source(), "'");
  return name;
}

int64_t FlightRecorder::enqueue(Flight flight, std::string_view source, int64_t now_ns) {
  const size_t length = std::min(source.size(), Flight::kSourceLength - 1);  // the remaining bytes stay zero
  std::copy_n(source.data(), length, flight.source_text.data());
  flight.enqueue_ns = now_ns;
  const std::lock_guard lock(mutex_);
  if (flight.what != Collective::exchange) ++sequence_;
  flight.sequence = sequence_;
  ++count_;
  newest() = flight;
  return flight.sequence;
}

void FlightRecorder::start(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  newest().start_ns = now_ns;
}

void FlightRecorder::end(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  newest().end_ns = now_ns;
}

std::optional<Flight> FlightRecorder::last() const {
  const std::lock_guard lock(mutex_);
  if (count_ == 0) return std::nullopt;
  return ring_[static_cast<size_t>((count_ - 1) % kCapacity)];
}

std::vector<Flight> FlightRecorder::history() const {
  const std::lock_guard lock(mutex_);
  std::vector<Flight> out;
  for (int64_t i = std::max<int64_t>(0, count_ - kCapacity); i < count_; ++i) {
    out.push_back(ring_[static_cast<size_t>(i % kCapacity)]);
  }
  return out;
}

std::optional<std::string> diagnose(Ranks ranks, int64_t now_ns, int64_t deadline_ns) {
  // The first in the static order explains the later ones.
  const Flight* stuck = nullptr;
  std::vector<size_t> missing;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::optional<Flight>& f = ranks[r].last;
    if (!under_way(f) || now_ns - f->enqueue_ns <= deadline_ns) continue;
    if (stuck != nullptr && f->sequence >= stuck->sequence) continue;
    const std::vector<size_t> absent = missing_for(ranks, r);
    if (absent.empty()) continue;  // it is in progress, or the rank that it waits for is the cause
    stuck = &*f;
    missing = absent;
  }
  if (stuck == nullptr) return std::nullopt;
  std::vector<size_t> waiting;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (under_way(ranks[r].last) && ranks[r].last->sequence == stuck->sequence) waiting.push_back(r);
  }
  std::string report = base::concat(
      stuck->describe(), " waits ", seconds(now_ns - stuck->enqueue_ns), " on ", names_of(ranks, waiting),
      waits(*stuck) ? "; not started by " : "; not finished with ", names_of(ranks, missing));
  for (const size_t r : missing) {
    report += base::concat("; rank ", ranks[r].world_rank, " ", last_of(ranks[r]));
  }
  return report;
}

}  // namespace trireme::comm
