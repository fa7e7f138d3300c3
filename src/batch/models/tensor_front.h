// The front of a graph that takes tensors: numbers from columns, and pictures where it wants pixels.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "batch/models/column_values.h"
#include "batch/models/row_front.h"
#include "data/image/picture_input.h"
#include "ir/graph.h"

namespace trireme::batch {

class TensorFront final : public RowFront {
 public:
  struct Options {
    std::map<std::string, std::string>
        columns;  ///< input: column; an input that is not named: of its own name
    data::PixelValues pictures = data::PixelValues::off;  ///< what the graph's one input makes of pictures
    bool has_batch = true;          ///< dimension 0 of the inputs counts rows, and is not one of a row's
    bool joins_rows = true;         ///< neighbouring small rows may be one request
    std::vector<bool> by_row = {};  ///< outputs_by_row() of the graph
  };
  /// Throws invalid_argument for a column of an input that is not there, unsupported for pictures where the
  /// graph takes none.
  TensorFront(const ir::Graph& graph, const Options& options);

  std::vector<std::string> columns() const override;
  std::vector<data::Field> outputs() const override { return outputs_; }
  void prepare(const data::Rows& piece, const Take& take) const override;
  /// Bytes of one row's inputs; 0: not known before it is seen.
  int64_t row_bytes() const;

 private:
  tensor::Tensor value(const BoundInput& input, const data::Rows& piece, int64_t row) const;
  bool is_picture(const data::Column& column) const;
  tensor::Tensor picture(const data::Column& column, int64_t row) const;
  tensor::Tensor as_request(tensor::Tensor row) const;
  bool prepare_all(const data::Rows& piece, const Take& take) const;

  const bool has_batch_, joins_rows_;
  std::vector<BoundInput> inputs_;
  std::optional<data::PictureInput> picture_;
  std::vector<data::Field> outputs_;
};

/// By output of the graph: whether its first dimension is the rows, where the inputs have such a dimension
/// (`has_batch`). All of them are where rows were shown to be independent (`is_batched`). Otherwise rows run
/// alone, and the first dimension is one of rows if it is 1 then, or has the name of the inputs'; where its
/// extent depends on values, as the number of boxes that a detector finds, the row has the whole output.
std::vector<bool> outputs_by_row(const ir::Graph& graph, bool has_batch, bool is_batched);
/// The graph's outputs as columns, without their dimension of rows.
std::vector<data::Field> output_fields(const ir::Graph& graph, const std::vector<bool>& by_row);

}  // namespace trireme::batch
