// What stands between rows of a data set and the tensors of a graph.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "batch/models/answer_rows.h"
#include "data/rows/rows.h"
#include "sched/batch.h"
#include "tensor/tensor.h"

namespace trireme::batch {

/// Neighbouring rows of a piece as one request: inputs in the graph's order, dimension 0 the rows where the
/// model batches.
struct RowPart {
  int64_t row = 0;  ///< the first, of the piece
  int64_t rows = 1;
  std::vector<tensor::Tensor> inputs = {};
};

/// Immutable; any thread.
class RowFront {
 public:
  struct Take {
    std::function<void(RowPart&&)> part;
    std::function<void(int64_t row, const base::Error&)> refuse;
  };

  virtual ~RowFront() = default;
  /// Columns of the input that it reads.
  virtual std::vector<std::string> columns() const = 0;
  /// What finish() gives for a row.
  virtual std::vector<data::Field> outputs() const = 0;
  /// Every row of the piece goes once to `take`: in a part, or refused.
  virtual void prepare(const data::Rows& piece, const Take& take) const = 0;
  /// The graph's outputs for one row -> what is written. `inputs` are the row's, as prepared.
  virtual std::vector<OutputValue> finish(const std::vector<tensor::Tensor>& inputs,
                                          std::vector<tensor::Tensor> outputs) const {
    static_cast<void>(inputs);
    return {std::make_move_iterator(outputs.begin()), std::make_move_iterator(outputs.end())};
  }
  /// Whether finish() needs the inputs.
  virtual bool keeps_inputs() const { return false; }
  /// How requests of different sizes are made equal.
  virtual void pad(sched::Padding& padding) const { static_cast<void>(padding); }
};

}  // namespace trireme::batch
