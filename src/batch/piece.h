// A piece of a chunk on its way: rows as they were read, what the model answered, and which rows failed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "batch/row_model.h"
#include "data/rows/rows.h"

namespace trireme::batch {

/// Rows `at` of `from`, ascending. Neighbours are taken together, so that all of them cost no copy.
data::Rows select(const data::Rows& from, const std::vector<int64_t>& at);

/// Whether an error may be gone when the row is asked for again.
bool may_pass(const base::Error& error);

/// Bytes that columns hold.
int64_t bytes_of(const data::Rows& rows);

/// The life of one piece: its rows are asked for, some perhaps again, until each has an answer or an error.
/// One thread at a time.
class Piece {
 public:
  /// `keep`: columns that stay until the piece is written; the others go with the last question.
  Piece(data::Rows read, std::vector<std::string> keep, int64_t first_row);

  int64_t rows() const { return rows_; }
  int64_t first_row() const { return first_row_; }  ///< in its file
  /// What the model is to be asked for next; null: nothing, every row has its answer or its error.
  std::shared_ptr<const data::Rows> question() const { return question_; }
  /// Takes the answer to the question. Rows whose error may pass make the next question while
  /// `may_ask_again`.
  void answer(PieceAnswer&& answer, bool may_ask_again);

  /// Of a piece without a question: rows whose outputs hold NaN or infinity fail, as they must where the
  /// format of the output has no such numbers. `outputs`: the model's, as they are named there.
  void refuse_non_finite(const std::vector<data::Field>& outputs);
  /// Of a piece without a question: the rows that succeeded, kept columns first, outputs under `names`.
  data::Rows result(const std::vector<data::Field>& outputs) const;
  struct Failure {
    int64_t row = 0;  ///< of the piece
    base::Error error;
  };
  const std::vector<Failure>& failures() const { return failures_; }
  /// The kept columns of all rows.
  const data::Rows& kept() const { return kept_; }
  int64_t bytes() const { return bytes_; }

 private:
  /// Where the answer to a row stands.
  struct Place {
    size_t answer = 0;
    int64_t row = 0;
  };
  void ask(std::vector<int64_t> rows);
  void finish();
  void sort_failures();

  int64_t rows_, first_row_;
  std::shared_ptr<const data::Rows> read_, question_;
  std::vector<int64_t> asked_;  ///< rows of the piece that the question holds, ascending
  data::Rows kept_;
  std::vector<data::Rows> answers_;
  std::vector<std::optional<Place>> places_;  ///< by row
  std::vector<Failure> failures_;             ///< ascending by row once there is no question
  int64_t bytes_ = 0;
};

}  // namespace trireme::batch
