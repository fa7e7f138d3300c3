// Reading and growing a journal under its lock.
#include "batch/state/journal.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/files/file.h"
#include "batch/state/byte_fields.h"

namespace trireme::batch {
namespace {

constexpr std::string_view kJournalMagic = "TRMJRNL1";
constexpr int64_t kHeaderBytes = 16;                 // the magic and the job's number
constexpr int64_t kPieceBytes = int64_t{256} << 10;  // read at a time

std::string header_of(uint64_t job) {
  std::string header(kJournalMagic);
  put(header, job);
  return header;
}

void check_header(const std::string& path, uint64_t job, std::string_view header) {
  base::require(header.substr(0, 7) == kJournalMagic.substr(0, 7), "'", path,
                "' is no journal of a batch job");
  base::require(header.substr(0, 8) == kJournalMagic, "'", path, "' is a journal of version '",
                header.substr(7, 1), "'; this program writes version 1");
  base::require(header == header_of(job), "'", path, "' is the journal of another job than the manifest's");
}

/// Whether a whole record begins anywhere behind the damage at `at`: then it is no record that was cut short.
bool has_record_behind(const PosixFile& file, int64_t at) {
  const std::string tail = file.read(at, kPieceBytes);
  for (size_t begin = 1; begin < tail.size(); ++begin) {
    if (decode(std::string_view(tail).substr(begin))) return true;
  }
  return false;
}

/// Calls `take` for the records from `at` on; gives where the whole ones end.
int64_t read_records(const PosixFile& file, int64_t at, const std::function<void(const Record&)>& take) {
  for (int64_t end = file.size(); at < end;) {
    const std::string piece = file.read(at, std::min(kPieceBytes, end - at));
    size_t used = 0;
    while (const std::optional<Decoded> next = decode(std::string_view(piece).substr(used))) {
      take(next->record);
      used += next->bytes;
    }
    at += static_cast<int64_t>(used);
    if (used == 0) break;
  }
  return at;
}

[[noreturn]] void fail_damaged(const PosixFile& file, int64_t at) {
  base::fail_invalid("the journal '", file.path(), "' is damaged at byte ", at, " of ", file.size(),
                     ", with whole records behind: `truncate -s ", at,
                     "` it, and the chunks that were done since are done again");
}

/// Holds the lock of a file while it lives.
class Hold {
 public:
  Hold(PosixFile& file, int64_t patience_ns) : file_(file) {
    const base::SystemClock clock;
    const int64_t begin = clock.now_ns();
    for (auto pause = std::chrono::microseconds(100); !file_.try_lock();
         pause = std::min(pause * 2, std::chrono::microseconds(20'000))) {
      if (clock.now_ns() - begin > patience_ns) {
        base::fail(base::ErrorCode::unavailable, "another worker holds the lock of '", file_.path(), "' for ",
                   patience_ns / base::kNsPerSecond, " s; is it stopped, or its machine lost?");
      }
      std::this_thread::sleep_for(pause);
    }
  }
  ~Hold() { file_.unlock(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  PosixFile& file_;
};

}  // namespace

Journal::Journal(const std::string& path, uint64_t job, int64_t chunks)
    : path_(path), job_(job), open_(Open{PosixFile(path, O_RDWR | O_CREAT), ChunkTable(chunks)}) {
  transact([](Transaction&) {});
}

bool Journal::read_new(Open& open) {
  open.end = read_records(open.file, open.end, [&](const Record& r) { open.table.apply(r); });
  return open.end == open.file.size();
}

void Journal::transact(const std::function<void(Transaction&)>& decide, int64_t patience_ns) {
  open_.with([&](Open& open) {
    PosixFile& file = open.file;
    const Hold hold(file, patience_ns);
    if (file.size() < open.end) {
      // It was cut by hand, or its disk lost the end: what is left is read again from the beginning.
      open.table = ChunkTable(open.table.chunks());
      open.end = 0;
    }
    if (open.end == 0) {
      // A header that was cut short is written again: nothing can stand behind it.
      if (file.size() < kHeaderBytes) {
        file.truncate(0);
        file.write(0, header_of(job_));
      }
      check_header(path_, job_, file.read(0, kHeaderBytes));
      open.end = kHeaderBytes;
    }
    if (!read_new(open)) {
      if (has_record_behind(file, open.end)) fail_damaged(file, open.end);
      file.truncate(open.end);
    }
    Transaction transaction(open.table);
    try {
      decide(transaction);
      note_owners(open.table);
      const std::string& bytes = transaction.bytes();
      if (bytes.empty()) return;
      file.write(open.end, bytes);
      const int64_t now = base::SystemClock().now_ns();
      if (now - open.flushed_ns >= kFlushNs || open.table.all_done()) {
        file.sync();
        open.flushed_ns = now;
      }
      open.end += static_cast<int64_t>(bytes.size());
    } catch (...) {
      // The table knows what the file will not hold: the next look reads it all again, even if the file
      // cannot be cut now.
      const int64_t end = std::exchange(open.end, kHeaderBytes);
      open.table = ChunkTable(open.table.chunks());
      if (!transaction.bytes().empty()) file.truncate(end);
      throw;
    }
  });
}

void Journal::note_owners(const ChunkTable& table) {
  std::set<uint64_t> owners;
  for (const auto& [chunk, lease] : table.leases()) owners.insert(lease.worker);
  owners_.with([&](auto& known) { known = std::move(owners); });
}

void Journal::refresh() {
  transact([](Transaction&) {});
}

void Journal::look(const std::function<void(const ChunkTable&)>& look) const {
  open_.with([&](const Open& open) { look(open.table); });
}

void read_journal(const std::string& path, uint64_t job, const std::function<void(const Record&)>& take) {
  if (!base::file_exists(path)) return;
  PosixFile file(path, O_RDONLY);
  if (file.size() < kHeaderBytes) return;
  check_header(path, job, file.read(0, kHeaderBytes));
  int64_t end = read_records(file, kHeaderBytes, take);
  // What does not read as a record may be one that is being written: with the lock held nobody writes.
  constexpr int kTries = 200;
  constexpr auto kPause = std::chrono::milliseconds(5);
  for (int i = 0; end < file.size() && i < kTries; ++i) {
    if (!file.try_lock(PosixFile::Lock::shared)) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    end = read_records(file, end, take);
    if (end < file.size() && has_record_behind(file, end)) fail_damaged(file, end);
    return;
  }
}

}  // namespace trireme::batch
