// Writes one column of tensors as a NumPy array.
#include <cstdio>

#include "base/error.h"
#include "data/rows/writers.h"
#include "tensor/npy_header.h"

namespace trireme::data {
namespace {

using tensor::Tensor;

/// The header comes first and states the number of rows, so rows wait in an unnamed temporary file.
class NpyWriter : public RowWriter {
 public:
  NpyWriter(StoreWriter& to, const Field& field) : to_(to), field_(field), waiting_(std::tmpfile()) {
    if (waiting_ == nullptr)
      base::fail(base::ErrorCode::unavailable, "cannot make a temporary file for rows of an array");
  }
  ~NpyWriter() override { std::fclose(waiting_); }
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;

  void write(const Rows& rows) override {
    check_rows(rows, {field_});
    const Column& column = rows.columns[0];
    for (int64_t row = 0; row < rows.count; ++row) {
      base::require(!column.is_missing_at(row), "an array cannot lack the value of a row: '", field_.name,
                    "'");
    }
    if (column.numbers.defined()) {
      const tensor::Dims& all = column.numbers.dims();
      if (rows.count > 0) take_shape({all.begin() + 1, all.end()});
      append(column.numbers);
    }
    for (const Tensor& row : column.ragged) {
      take_shape(row.dims());
      append(row);
    }
    rows_ += rows.count;
  }

  void finish() override {
    tensor::Dims dims = shape_.value_or(field_.shape.is_static() ? field_.shape.to_dims() : tensor::Dims{});
    dims.insert(dims.begin(), rows_);
    to_.write(tensor::npy_header(field_.dtype, dims));
    std::rewind(waiting_);
    std::vector<char> block(size_t{256} << 10);
    int64_t copied = 0;
    for (size_t got = 0; (got = std::fread(block.data(), 1, block.size(), waiting_)) > 0;) {
      to_.write({block.data(), got});
      copied += static_cast<int64_t>(got);
    }
    if (copied != bytes_)
      base::fail(base::ErrorCode::unavailable, "cannot read back the rows of an array from a temporary file");
  }

 private:
  void take_shape(const tensor::Dims& dims) {
    if (!shape_) shape_ = dims;
    base::require(*shape_ == dims, "rows of an array have one shape: '", field_.name, "', ",
                  tensor::to_string(*shape_), " and ", tensor::to_string(dims));
  }

  void append(const Tensor& t) {
    const auto bytes = static_cast<size_t>(t.bytes());
    if (std::fwrite(t.raw(), 1, bytes, waiting_) != bytes)
      base::fail(base::ErrorCode::exhausted, "no room for rows of an array in a temporary file");
    bytes_ += t.bytes();
  }

  StoreWriter& to_;
  Field field_;
  std::FILE* waiting_;
  std::optional<tensor::Dims> shape_;  // of a row; unknown before the first
  int64_t rows_ = 0, bytes_ = 0;
};

}  // namespace

std::unique_ptr<RowWriter> make_npy_writer(StoreWriter& to, const std::vector<Field>& fields) {
  if (fields.size() != 1 || fields[0].kind != FieldKind::tensor)
    base::fail_unsupported("an array file holds exactly one column of numbers, not ", fields.size(),
                           " columns");
  tensor::npy_header(fields[0].dtype, {});  // refuses types that NumPy lacks
  return std::make_unique<NpyWriter>(to, fields[0]);
}

}  // namespace trireme::data
