// The journal of a job: the one file by which its workers agree, on one machine or many.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/guarded.h"
#include "batch/state/chunk_table.h"
#include "batch/state/posix_file.h"
#include "batch/state/record.h"

namespace trireme::batch {

/// What a worker sees and adds while it alone holds the journal.
class Transaction {
 public:
  explicit Transaction(ChunkTable& table) : table_(table) {}
  /// Everything that is in the journal, with what this transaction added.
  ChunkTable& table() { return table_; }
  void add(Record record) {
    table_.apply(record);
    bytes_ += encode(record);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  ChunkTable& table_;
  std::string bytes_;
};

/// Records one after another, each with its length and checksum. A record is added with a lock held on the
/// file, after everything that others added was read. A record that was cut short, by a power cut or a killed
/// worker, is cut off by the next who adds one; damage in the middle is refused, with what to do.
class Journal {
 public:
  /// Opens or begins the journal of job `job`. Throws invalid_argument for another job's.
  Journal(const std::string& path, uint64_t job, int64_t chunks);

  /// Calls `decide` with the lock held. When it returns, what it added is in the file. It is on the disk
  /// within kFlushNs, and at once when it ends the job: what a power cut takes is done again, so nothing
  /// waits for the disk more often. If `decide` throws, or there is no room, nothing is added. Throws
  /// `unavailable` where another worker holds the lock for longer than `patience_ns`. Any thread.
  void transact(const std::function<void(Transaction&)>& decide,
                int64_t patience_ns = int64_t{60} * 1'000'000'000);
  static constexpr int64_t kFlushNs = 1'000'000'000;

  /// Reads what others added.
  void refresh();
  /// A look at what is known. `look` is short and does not come back.
  void look(const std::function<void(const ChunkTable&)>& look) const;
  /// The workers that had leases when the journal was last read. Does not wait while another holds its lock.
  std::set<uint64_t> owners() const { return owners_.copy(); }

 private:
  struct Open {
    PosixFile file;
    ChunkTable table;
    int64_t end = 0;  ///< of what was read
    int64_t flushed_ns = 0;
  };
  static bool read_new(Open& open);
  void note_owners(const ChunkTable& table);

  std::string path_;
  uint64_t job_;
  base::Guarded<Open> open_;
  base::Guarded<std::set<uint64_t>> owners_;
};

/// Every whole record in order, for reports and status. Throws not_found, and invalid_argument for a file
/// that is no journal; a record that was cut short ends it.
void read_journal(const std::string& path, uint64_t job, const std::function<void(const Record&)>& take);

}  // namespace trireme::batch
