// Pieces of rows between the thread that reads, the model, and the thread that writes: in order, and bounded.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "batch/piece.h"
#include "batch/row_model.h"
#include "data/rows/row_file.h"

namespace trireme::batch {

/// An error that asking again does not cure: the job ends with it.
class FinalError : public base::Error {
 public:
  explicit FinalError(const base::Error& error) : base::Error(error) {}
};

/// A chunk between its lease and its commit. The reader's fields are its own until the last item of the chunk
/// is in the line.
struct ChunkWork {
  int64_t chunk = 0;
  std::string path;  ///< of the input
  std::shared_ptr<const data::RowFile> input;
  int64_t begin_ns = 0, end_ns = 0;     ///< of reading
  int64_t read_ns = 0, blocked_ns = 0;  ///< in the reader of rows; until the line and the model took a piece
};

/// What stands in the line.
struct LineItem {
  enum class Kind { piece, chunk_end, chunk_dropped, last };
  Kind kind = Kind::piece;
  std::shared_ptr<ChunkWork> work = {};
  std::shared_ptr<Piece> piece = {};
};

struct LineLimits {
  int64_t rows = 0, bytes = 0;  ///< in the line: the reader waits at either
  int retries = 0;
  int64_t retry_wait_ns = 0;  ///< before the first; doubles
};

/// One reader, one writer. Answers may come in any order and from any thread, also after the line has ended.
class PieceLine {
 public:
  PieceLine(RowModel& model, const LineLimits& limits);
  /// Ends the line.
  ~PieceLine();
  PieceLine(const PieceLine&) = delete;
  PieceLine& operator=(const PieceLine&) = delete;

  /// The reader's end: waits for room, then for the model. False: the line has ended.
  bool push(LineItem item);
  /// Waits so long, or until the line ends; false then.
  bool wait(int64_t ns);
  /// The writer meets this error when it asks next.
  void fail(std::exception_ptr error);

  /// The writer's end: the front item once it is answered; nothing after `wait_ns`. Throws what failed.
  std::optional<LineItem> next(int64_t wait_ns);
  /// Nobody waits any more, and answers that come are dropped. Any thread.
  void end();

  int64_t rows() const;     ///< in the line
  int64_t retried() const;  ///< rows that were asked for again

 private:
  struct State;
  static void ask(const std::shared_ptr<State>& state, const std::shared_ptr<Piece>& piece, int attempt);
  void retry();

  std::shared_ptr<State> state_;  ///< answers that come late hold it
  std::thread retrier_;
};

}  // namespace trireme::batch
