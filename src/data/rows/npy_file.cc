// A NumPy array as rows, which are the slices along its first dimension.
#include <algorithm>

#include "base/error.h"
#include "data/rows/byte_stream.h"
#include "data/rows/row_formats.h"
#include "tensor/npy_header.h"

namespace trireme::data {
namespace {

using base::require;
using tensor::DType;
using tensor::Tensor;

constexpr size_t kMostHeaderBytes = size_t{1} << 20;

/// Row r is stored at `data + r * row_bytes`.
struct ArrayPlace {
  int64_t rows = 0;
  int64_t data = 0;
  int64_t row_bytes = 0;
};

class NpyStream : public RowStream {
 public:
  NpyStream(const StoreFile& file, const ArrayPlace& place, const RowSpan& span, ColumnChoice choice)
      : file_(file),
        place_(place),
        at_(span.first_row),
        end_(span.first_row + span.rows),
        choice_(std::move(choice)) {}

  bool next(int64_t most, Rows& out) override {
    const int64_t fit =
        std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes) / std::max<int64_t>(1, place_.row_bytes));
    const int64_t count = std::min({most, end_ - at_, fit});
    if (count <= 0) return false;
    out = {};
    out.count = count;
    for (const Field& field : choice_.fields) out.columns.push_back(read(field, count));
    at_ += count;
    return true;
  }

 private:
  Column read(const Field& field, int64_t count) const {
    tensor::Dims dims = field.shape.to_dims();
    dims.insert(dims.begin(), count);
    Tensor numbers = Tensor::empty(field.dtype, dims);
    file_.read(place_.data + at_ * place_.row_bytes,
               {numbers.mutable_raw(), static_cast<size_t>(numbers.bytes())});
    if (field.dtype == DType::boolean) {  // any byte but 0 is true
      std::byte* bytes = numbers.mutable_raw();
      std::transform(bytes, bytes + numbers.bytes(), bytes,
                     [](std::byte b) { return b == std::byte{0} ? std::byte{0} : std::byte{1}; });
    }
    return {field, std::move(numbers)};
  }

  const StoreFile& file_;
  ArrayPlace place_;
  int64_t at_, end_;
  ColumnChoice choice_;
};

class NpyFile : public RowFile {
 public:
  explicit NpyFile(RowSource source) : file_(std::move(source.file)) {
    const int64_t size = file_->size();
    const std::string head = read_range(*file_, 0, std::min<int64_t>(12, size));
    const size_t header_bytes = tensor::npy_header_bytes(head);
    require(header_bytes > 0, "not a npy file");
    require(header_bytes <= kMostHeaderBytes && static_cast<int64_t>(header_bytes) <= size, "npy header of ",
            header_bytes, " bytes is truncated, or none");
    const tensor::NpyHeader header =
        tensor::parse_npy_header(read_range(*file_, 0, static_cast<int64_t>(header_bytes)));
    require(!header.dims.empty(), "npy file holds one number, not rows");
    if (header.is_big_endian || (header.is_column_major && header.dims.size() > 1))
      base::fail_unsupported("npy rows are read in C order and little-endian only; save them so");
    const tensor::Dims row(header.dims.begin() + 1, header.dims.end());
    place_ = {header.dims[0], static_cast<int64_t>(header_bytes),
              tensor::bytes_of(header.dtype, tensor::element_count(row))};
    const int64_t data = bytes_of(header.dtype, tensor::element_count(header.dims));
    require(size - place_.data >= data, "npy file has ", size - place_.data, " bytes of data, shape ",
            tensor::to_string(header.dims), " needs ", data);
    check_row_count(place_.rows, size);
    require(place_.row_bytes <= source.options.most_row_bytes, "rows of ", place_.row_bytes,
            " bytes are longer than the limit of ", source.options.most_row_bytes);
    fields_ = {{"array", FieldKind::tensor, header.dtype, tensor::Shape::of(row)}};
  }

  std::string_view format() const override { return "npy"; }
  const std::vector<Field>& fields() const override { return fields_; }
  uint64_t content_id() const override { return content_id_of(*file_); }
  void cut(int64_t rows, const std::function<void(const RowSpan&)>& take) const override {
    cut_evenly(place_.rows, rows, take);
  }
  std::unique_ptr<RowStream> open(const RowSpan& span,
                                  const std::vector<std::string>& columns) const override {
    check_span(span, place_.rows);
    return std::make_unique<NpyStream>(*file_, place_, span, choose_columns(fields_, columns));
  }

 private:
  std::shared_ptr<const StoreFile> file_;
  std::vector<Field> fields_;
  ArrayPlace place_;
};

}  // namespace

std::unique_ptr<RowFile> open_npy_rows(RowSource source) {
  return std::make_unique<NpyFile>(std::move(source));
}

}  // namespace trireme::data
