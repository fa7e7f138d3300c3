// What a rank's last operations were and how far they got: the record that explains a job that waits.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

enum class Collective : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  barrier,
  split,
  finish,    // the rank is done: matches nothing but its like
  exchange,  // send, recv or both
};
std::string_view to_string(Collective what);

/// One operation of one rank. Times are the monotonic clock's; 0: not yet.
struct Flight {
  static constexpr size_t kSourceLength = 64;

  int64_t sequence =
      0;  // static number: collectives of the group count from 1; an exchange has the last one's
  Collective what = Collective::barrier;
  int64_t bytes = 0;  // of the input, or of the output if there is none
  int to = -1, from = -1;
  int64_t enqueue_ns = 0;  // this rank came
  int64_t start_ns = 0;    // all ranks had come
  int64_t end_ns = 0;
  std::array<char, kSourceLength> source_text{};  // cut to fit, so that recording never allocates

  std::string_view source() const { return source_text.data(); }
  /// "all_reduce #17 of 4096 bytes for layer 'h.3.mlp'".
  std::string describe() const;
};

/// Ring buffer of one rank in one group. The rank writes, a watchdog may read.
class FlightRecorder {
 public:
  static constexpr int64_t kCapacity = 256;

  /// Begins an operation and returns its sequence number.
  int64_t enqueue(Flight flight, std::string_view source, int64_t now_ns);
  void start(int64_t now_ns);
  void end(int64_t now_ns);

  std::optional<Flight> last() const;
  /// Oldest first, at most kCapacity.
  std::vector<Flight> history() const;

 private:
  Flight& newest() { return ring_[static_cast<size_t>((count_ - 1) % kCapacity)]; }

  mutable std::mutex mutex_;
  std::array<Flight, kCapacity> ring_;
  int64_t count_ = 0;
  int64_t sequence_ = 0;
};

/// The newest operation of one rank, as its group's watchdog learned of it; index in the list = rank in the
/// group.
struct RankFlight {
  int world_rank;
  std::optional<Flight> last;
  bool answers = true;  // false: the process did not say what it does
};

/// One report if an operation of the group waits since more than `deadline_ns`: the collective, its layer,
/// who waits, and who has not started it with the last thing each of those did. Ranks that do not answer are
/// named also where all had started. Nothing if all are under way.
std::optional<std::string> diagnose(std::span<const RankFlight> ranks, int64_t now_ns, int64_t deadline_ns);

}  // namespace trireme::comm
