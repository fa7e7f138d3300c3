// A worker's own file in a job's directory: who holds it lives, and its bytes change as long as it moves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batch/state/posix_file.h"

namespace trireme::batch {

/// The name of a worker's file and of its directory for temporary files: 16 hexadecimal digits.
std::string worker_name(uint64_t worker);
/// "machine:process" of this process.
std::string this_process();

/// What a worker's file is called until it is locked: its name and this.
inline constexpr const char* kNewSeat = ".new";

/// Held from the start to the end of a worker. The lock on the file ends with the process, which others see
/// at once; a process that is stopped, or whose machine is away, no longer changes the bytes.
class WorkerSeat {
 public:
  /// Draws a number, makes the file in `directory` and locks it.
  explicit WorkerSeat(std::string directory);
  /// Removes the file.
  ~WorkerSeat();
  WorkerSeat(const WorkerSeat&) = delete;
  WorkerSeat& operator=(const WorkerSeat&) = delete;

  uint64_t worker() const { return worker_; }
  /// Changes the bytes, a count, where other machines see it too. Throws what writing and flushing throw.
  void beat();

 private:
  void write_count();

  uint64_t worker_;
  std::string path_;
  std::unique_ptr<PosixFile> file_;
  uint64_t beats_ = 0;
};

/// A number that nobody else has.
uint64_t draw_number();

/// Workers whose files lie in the directory, by number.
std::vector<uint64_t> workers_in(const std::string& directory);

}  // namespace trireme::batch
