// What the records of a job add up to: which chunks are done, who works on which, and the sums.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "batch/state/record.h"

namespace trireme::batch {

struct Lease {
  uint64_t worker = 0, token = 0;
  bool operator==(const Lease&) const = default;
};

/// Two bits a chunk, and an entry for each chunk that somebody works on. Nothing grows with the rows.
class ChunkTable {
 public:
  explicit ChunkTable(int64_t chunks);

  /// Throws invalid_argument for a chunk that the job does not have.
  void apply(const Record& record);

  int64_t chunks() const { return chunks_; }
  int64_t done() const { return done_count_; }
  bool all_done() const { return done_count_ == chunks_; }
  bool is_done(int64_t chunk) const { return bit(done_, chunk); }
  /// The newest lease of a chunk that is not done; null: nobody works on it.
  const Lease* lease_of(int64_t chunk) const;
  /// Chunks under way by number.
  const std::map<int64_t, Lease>& leases() const { return leases_; }
  /// The first chunk that is neither done nor leased; -1: there is none.
  int64_t next_open();

  /// Of all chunks that are done.
  int64_t rows() const { return rows_; }
  int64_t errors() const { return errors_; }
  int64_t bytes() const { return bytes_; }

 private:
  static bool bit(const std::vector<uint64_t>& bits, int64_t at) {
    return (bits[static_cast<size_t>(at / 64)] >> (at % 64) & 1) != 0;
  }
  void set_taken(int64_t chunk, bool taken);

  int64_t chunks_;
  std::vector<uint64_t> done_, taken_;  ///< by chunk; taken: done or leased
  std::map<int64_t, Lease> leases_;
  int64_t from_ = 0;  ///< no chunk before it is open
  int64_t done_count_ = 0, rows_ = 0, errors_ = 0, bytes_ = 0;
};

}  // namespace trireme::batch
