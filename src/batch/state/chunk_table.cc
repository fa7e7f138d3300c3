// Chunks by the records of the journal.
#include "batch/state/chunk_table.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace trireme::batch {

ChunkTable::ChunkTable(int64_t chunks)
    : chunks_(chunks), done_(static_cast<size_t>((chunks + 63) / 64)), taken_(done_.size()) {}

void ChunkTable::set_taken(int64_t chunk, bool taken) {
  uint64_t& word = taken_[static_cast<size_t>(chunk / 64)];
  const uint64_t mask = uint64_t{1} << (chunk % 64);
  word = taken ? word | mask : word & ~mask;
  if (!taken) from_ = std::min(from_, chunk);
}

void ChunkTable::apply(const Record& record) {
  if (record.kind == RecordKind::worker || record.kind == RecordKind::ended) return;
  const int64_t chunk = record.chunk;
  base::require(chunk >= 0 && chunk < chunks_, "the journal names chunk ", chunk, " of a job that has ",
                chunks_);
  if (is_done(chunk)) return;
  const Lease by{record.worker, record.token};
  if (record.kind == RecordKind::lease) {
    leases_[chunk] = by;
    set_taken(chunk, true);
    return;
  }
  // Who gives back what another has taken over changes nothing; and such a one cannot have written `done`.
  const auto lease = leases_.find(chunk);
  if (lease == leases_.end() || lease->second != by) return;
  leases_.erase(lease);
  if (record.kind == RecordKind::given_back) return set_taken(chunk, false);
  done_[static_cast<size_t>(chunk / 64)] |= uint64_t{1} << (chunk % 64);
  ++done_count_;
  rows_ += record.result.rows;
  errors_ += record.result.errors;
  bytes_ += record.result.bytes + record.result.error_bytes;
}

const Lease* ChunkTable::lease_of(int64_t chunk) const {
  const auto found = leases_.find(chunk);
  return found == leases_.end() ? nullptr : &found->second;
}

int64_t ChunkTable::next_open() {
  for (size_t word = static_cast<size_t>(from_ / 64); word < taken_.size(); ++word) {
    const uint64_t open = ~taken_[word];
    if (open == 0) continue;
    from_ = static_cast<int64_t>(word) * 64 + std::countr_zero(open);
    return from_ < chunks_ ? from_ : -1;
  }
  from_ = chunks_;
  return -1;
}

}  // namespace trireme::batch
