// The front of a graph that takes tensors.
#include "batch/models/tensor_front.h"

#include <algorithm>

#include "passes/lists/lists.h"

namespace trireme::batch {
namespace {

using tensor::DType;
using tensor::Tensor;

/// Rows of less than this many bytes go several in a request, which costs as much as a small one.
constexpr int64_t kSmallRow = 4096;
constexpr int64_t kJoinedRows = 8;

/// The extents behind the dimension of rows.
tensor::Shape row_shape(const tensor::Shape& shape, bool has_batch) {
  if (!has_batch || !shape.has_rank()) return shape;
  return {std::vector<tensor::Dim>(shape.dims().begin() + 1, shape.dims().end())};
}

bool begins_with_one(const tensor::Shape& shape) {
  return shape.has_rank() && shape.rank() > 0 && shape[0].is_static() && shape[0].value() == 1;
}

/// The first dimension has the name that inputs' dimensions of rows have.
bool begins_with_rows(const ir::Graph& graph, const tensor::Shape& shape) {
  if (!shape.has_rank() || shape.rank() == 0 || shape[0].is_static()) return false;
  return std::any_of(graph.inputs().begin(), graph.inputs().end(),
                     [&](ir::ValueId id) { return graph.type(id).shape[0] == shape[0]; });
}

/// Shapes of the inputs of one row; open dimensions behind it have `extent`.
std::vector<tensor::Dims> shapes_of_one(const ir::Graph& graph, int64_t extent) {
  std::vector<tensor::Dims> shapes;
  for (const ir::ValueId id : graph.inputs()) {
    tensor::Dims& dims = shapes.emplace_back();
    for (const tensor::Dim& d : graph.type(id).shape.dims()) {
      const bool is_rows = dims.empty() || begins_with_rows(graph, {d});
      dims.push_back(d.is_static() ? d.value() : is_rows ? 1 : extent);
    }
  }
  return shapes;
}

/// By output: with one row its first extent is 1, whatever the values of the inputs and open dimensions are.
std::vector<bool> outputs_of_one(const ir::Graph& graph) {
  std::vector<bool> all(graph.outputs().size(), true);
  bool is_tried = false;
  for (const int64_t extent : {1, 3, 16, 37, 64, 224, 256}) {  // models may refuse some
    try {
      const ir::Graph bound = passes::bind_shapes(graph, shapes_of_one(graph, extent));
      for (size_t i = 0; i < all.size(); ++i)
        all[i] = all[i] && begins_with_one(bound.type(bound.outputs()[i]).shape);
      is_tried = true;
    } catch (const base::Error&) {
      continue;
    }
  }
  return is_tried ? all : std::vector<bool>(all.size(), false);
}

}  // namespace

std::vector<bool> outputs_by_row(const ir::Graph& graph, bool has_batch, bool is_batched) {
  std::vector<bool> by_row(graph.outputs().size(), false);
  std::vector<bool> of_one;
  for (size_t i = 0; has_batch && i < by_row.size(); ++i) {
    const tensor::Shape& shape = graph.type(graph.outputs()[i]).shape;
    const bool is_open = !shape.has_rank() || (shape.rank() > 0 && !shape[0].is_static());
    by_row[i] = begins_with_one(shape) || begins_with_rows(graph, shape) || (is_open && is_batched);
    if (by_row[i] || !is_open) continue;
    if (of_one.empty()) of_one = outputs_of_one(graph);
    by_row[i] = of_one[i];
  }
  return by_row;
}

std::vector<data::Field> output_fields(const ir::Graph& graph, const std::vector<bool>& by_row) {
  std::vector<data::Field> fields;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const tensor::TensorType& type = graph.type(graph.outputs()[i]);
    fields.push_back(
        {.name = graph.output_names()[i], .dtype = type.dtype, .shape = row_shape(type.shape, by_row[i])});
  }
  return fields;
}

TensorFront::TensorFront(const ir::Graph& graph, const Options& options)
    : has_batch_(options.has_batch),
      joins_rows_(options.joins_rows),
      outputs_(output_fields(graph, options.by_row)) {
  auto left = options.columns;
  for (const ir::ValueId id : graph.inputs()) {
    const ir::Value& value = graph.value(id);
    BoundInput input{.input = value.name,
                     .column = value.name,
                     .dtype = value.type.dtype,
                     .row = row_shape(value.type.shape, has_batch_)};
    const auto at = left.find(value.name);
    if (at != left.end()) {
      input.column = at->second;
      left.erase(at);
    }
    inputs_.push_back(std::move(input));
  }
  if (!left.empty()) {
    std::string names;
    for (const BoundInput& i : inputs_) names += (names.empty() ? "" : ", ") + i.input;
    base::fail_invalid("columns: the model has no input '", left.begin()->first, "'; it has ", names);
  }
  const bool is_one = inputs_.size() == 1 && inputs_[0].dtype == DType::f32 && inputs_[0].row.has_rank() &&
                      inputs_[0].row.is_static();
  if (options.pictures == data::PixelValues::off) return;
  if (is_one) picture_ = data::PictureInput::of(inputs_[0].row.to_dims(), options.pictures);
  if (!picture_) {
    base::fail_unsupported("image_values needs a model with one input, f32 [3, height, width] or ",
                           "[height, width, 3] behind the rows");
  }
}

std::vector<std::string> TensorFront::columns() const {
  std::vector<std::string> names;
  for (const BoundInput& i : inputs_) {
    if (std::find(names.begin(), names.end(), i.column) == names.end()) names.push_back(i.column);
  }
  return names;
}

int64_t TensorFront::row_bytes() const {
  int64_t bytes = 0;
  for (const BoundInput& i : inputs_) {
    if (!i.row.has_rank() || !i.row.is_static()) return 0;
    bytes += tensor::bytes_of(i.dtype, *i.row.elements());
  }
  return bytes;
}

/// A row with its dimension of rows, where the graph has one.
Tensor TensorFront::as_request(Tensor row) const {
  if (!has_batch_) return row;
  tensor::Dims dims = row.dims();
  dims.insert(dims.begin(), 1);
  return row.reshaped(dims);
}

/// Files, and pixels as they are read from files.
bool TensorFront::is_picture(const data::Column& column) const {
  if (column.field.kind == data::FieldKind::bytes) return true;
  const tensor::Shape& shape = column.field.shape;
  return column.field.kind == data::FieldKind::tensor && column.field.dtype == DType::u8 &&
         shape.has_rank() && shape.rank() == 3 && shape[2].is_static() && shape[2].value() == 3;
}

Tensor TensorFront::picture(const data::Column& column, int64_t row) const {
  base::require(picture_.has_value(), "column '", column.field.name,
                "' holds pictures: say by image_values what their bytes become");
  if (const base::Error* error = column.error_at(row))
    throw error->with("column '" + column.field.name + "'");
  base::require(!column.is_missing_at(row), "column '", column.field.name, "': the row has no picture");
  Tensor out = Tensor::empty(DType::f32, picture_->dims());
  if (column.field.kind == data::FieldKind::bytes) {
    picture_->decode(column.strings[static_cast<size_t>(row)], out.mutable_data<float>());
    return out;
  }
  const Tensor pixels = column.tensor_at(row);
  const auto bytes = pixels.data<uint8_t>();
  picture_->write(
      {.height = pixels.dims()[0], .width = pixels.dims()[1], .rgb = {bytes.begin(), bytes.end()}},
      out.mutable_data<float>());
  return out;
}

/// With a dimension of rows, where the graph has one.
Tensor TensorFront::value(const BoundInput& input, const data::Rows& piece, int64_t row) const {
  const data::Column* column = piece.find(input.column);
  base::require(column != nullptr, "the input has no column '", input.column, "'");
  return as_request(is_picture(*column) && input.dtype == DType::f32 ? picture(*column, row)
                                                                     : row_value(input, *column, row));
}

/// Where all rows are numbers of one shape, requests look into the piece's own memory.
bool TensorFront::prepare_all(const data::Rows& piece, const Take& take) const {
  if (!has_batch_ || !piece.errors.empty()) return false;
  std::vector<Tensor> all;
  int64_t bytes = 0;
  for (const BoundInput& i : inputs_) {
    const data::Column* column = piece.find(i.column);
    const bool is_plain = column != nullptr && !is_picture(*column);
    const auto values = is_plain ? all_values(i, *column) : std::nullopt;
    if (!values) return false;
    bytes += values->bytes() / std::max<int64_t>(1, piece.count);
    all.push_back(*values);
  }
  const int64_t step = joins_rows_ && bytes <= kSmallRow ? kJoinedRows : 1;
  for (int64_t begin = 0; begin < piece.count; begin += step) {
    RowPart part{.row = begin, .rows = std::min(step, piece.count - begin)};
    for (const Tensor& t : all) part.inputs.push_back(t.rows(begin, begin + part.rows));
    take.part(std::move(part));
  }
  return true;
}

void TensorFront::prepare(const data::Rows& piece, const Take& take) const {
  if (prepare_all(piece, take)) return;
  for (int64_t row = 0; row < piece.count; ++row) {
    if (const base::Error* error = piece.error_at(row)) {
      take.refuse(row, *error);
      continue;
    }
    RowPart part{.row = row};
    try {
      for (const BoundInput& i : inputs_) part.inputs.push_back(value(i, piece, row));
    } catch (const base::Error& e) {
      take.refuse(row, e);
      continue;
    }
    take.part(std::move(part));
  }
}

}  // namespace trireme::batch
