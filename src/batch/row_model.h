// What a batch job asks of a model: pieces of rows in, the same rows out, each with its outputs or an error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text/json.h"
#include "data/rows/rows.h"

namespace trireme::batch {

/// A piece's rows after the model. A row with an error has no outputs: what stands in its place is missing.
struct PieceAnswer {
  data::Rows outputs;
  std::vector<std::optional<base::Error>> errors = {};  ///< by row; empty: every row was answered
};
using PieceSink = std::function<void(PieceAnswer&&)>;

/// Counts since the start.
struct ModelUse {
  int64_t busy_ns = 0;  ///< of all instances
  int instances = 1;
  int64_t rows = 0, elements = 0,
          padded = 0;  ///< as the model got them; `padded` of the elements were filled in
  int64_t tokens = 0;  ///< read and written by a language model
};

/// A model with its front end. The answer to a row does not depend on its neighbours, on the pieces, or on
/// the number of threads: the same bits whenever it is asked.
class RowModel {
 public:
  virtual ~RowModel() = default;
  /// Columns of the input that it reads.
  virtual std::vector<std::string> columns() const = 0;
  /// What its answers hold. Shapes may have unknown extents.
  virtual std::vector<data::Field> outputs() const = 0;
  /// Rows of a piece that keep it busy; a piece may have fewer.
  virtual int64_t piece_rows() const = 0;
  /// Takes a piece. Waits while as many rows are under way as it can use. `sink` is called once, from any
  /// thread, maybe before submit returns; it must be quick and not call the model. Errors of single rows are
  /// in the answer; a model that can answer nothing any more throws.
  virtual void submit(std::shared_ptr<const data::Rows> piece, PieceSink sink) = 0;
  /// Nobody waits for answers any more: submit() does not wait from now on, and rows that are not being
  /// computed yet are answered with an error. What the instances compute at this moment still ends. Any
  /// thread.
  virtual void give_up() {}
  virtual ModelUse use() const = 0;
  /// Everything that the outputs depend on beside the rows: the file's content id, version, precision,
  /// weights, options of the front end and of sampling. Compared with that of an earlier start of the job.
  virtual base::Json identity() const = 0;
};

}  // namespace trireme::batch
