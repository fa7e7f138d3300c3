// What the journal of a job is made of: records of leases, results and ends, and their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::batch {

enum class RecordKind : uint8_t { worker = 1, lease = 2, done = 3, given_back = 4, ended = 5 };

/// Where the time of a chunk went, and what the model got. Times run side by side: reading, the model and
/// writing are different threads.
struct Effort {
  int64_t elapsed_ns = 0;  ///< since the worker's chunk before
  int64_t read_ns = 0;     ///< in the reader of rows
  int64_t blocked_ns = 0;  ///< the reader waited until the model took more
  int64_t waiting_ns = 0;  ///< the writer waited for answers
  int64_t write_ns = 0, commit_ns = 0;
  int64_t busy_ns = 0;  ///< of all instances of the model
  int64_t instances = 0;
  int64_t elements = 0, padded = 0, tokens = 0;  ///< as ModelUse counts them
  int64_t retried = 0;                           ///< rows that were asked for again

  void add(const Effort& other);
};

/// What stands in a chunk's files.
struct ChunkResult {
  int64_t rows = 0, errors = 0;
  int64_t bytes = 0, error_bytes = 0;
  uint32_t crc = 0, error_crc = 0;  ///< CRC-32C of the files
  bool operator==(const ChunkResult&) const = default;
};

struct Record {
  RecordKind kind = RecordKind::worker;
  uint64_t worker = 0;  ///< drawn at random by each
  uint64_t token = 0;   ///< of a lease: counted by its worker
  int64_t chunk = -1;   ///< of lease, done and given_back
  int64_t wall_ns = 0;  ///< for people; decides nothing
  ChunkResult result = {};
  Effort effort = {};     ///< of done
  std::string text = {};  ///< of worker: machine and process; of given_back and ended: why
};

/// The bytes of a record: length, masked CRC-32C of what follows, then kind and fields.
std::string encode(const Record& record);

struct Decoded {
  Record record;
  size_t bytes = 0;  ///< that it takes
};

/// The record that `bytes` begin with; nothing where they hold no whole, undamaged one.
std::optional<Decoded> decode(std::string_view bytes);

/// No record takes more bytes.
inline constexpr size_t kMostRecordBytes = 4096;

}  // namespace trireme::batch
