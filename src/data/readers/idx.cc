// IDX files: big-endian arrays with a four-byte magic, the format of MNIST and its descendants.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "data/readers/readers.h"

namespace trireme::data {

using base::require;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

namespace {

uint32_t big_endian_u32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

DType idx_dtype(uint8_t code) {
  switch (code) {
    case 0x08: return DType::u8;
    case 0x09: return DType::i8;
    case 0x0B: return DType::i16;
    case 0x0C: return DType::i32;
    case 0x0D: return DType::f32;
    case 0x0E: return DType::f64;
    default: base::fail_invalid("IDX file has an unknown element type: ", int{code});
  }
}

}  // namespace

IdxHeader parse_idx(std::string_view file) {
  require(file.size() >= 4, "IDX file is cut off: ", file.size(), " bytes");
  require(file[0] == 0 && file[1] == 0, "not an IDX file: it does not start with two zero bytes");
  IdxHeader header;
  header.dtype = idx_dtype(static_cast<uint8_t>(file[2]));
  const auto rank = static_cast<uint8_t>(file[3]);
  require(rank >= 1 && rank <= 8, "IDX file has an unlikely rank: ", int{rank});
  header.header_bytes = 4 + size_t{4} * rank;
  require(file.size() >= header.header_bytes, "IDX file is cut off: ", file.size(), " bytes");
  for (size_t d = 0; d < rank; ++d) header.dims.push_back(big_endian_u32(file, 4 + 4 * d));
  header.data_bytes = static_cast<size_t>(tensor::bytes_of(header.dtype, tensor::element_count(header.dims)));
  require(file.size() - header.header_bytes == header.data_bytes, "IDX file has ",
          file.size() - header.header_bytes, " bytes of data, its header asks for ", header.data_bytes);
  return header;
}

namespace {

/// One IDX file whose samples are slices of the first dimension.
class IdxArray {
 public:
  IdxArray(const std::string& path, int64_t limit_bytes) : source_(open_source(path, limit_bytes)) {
    try {
      header_ = parse_idx(source_.bytes);
    } catch (const base::Error& e) {
      throw e.with("'" + path + "'");
    }
    sample_dims_.assign(header_.dims.begin() + 1, header_.dims.end());
    sample_bytes_ = static_cast<size_t>(tensor::bytes_of(header_.dtype, tensor::element_count(sample_dims_)));
  }

  int64_t size() const { return header_.dims[0]; }
  DType dtype() const { return header_.dtype; }
  const Dims& sample_dims() const { return sample_dims_; }
  const SourceFile& source() const { return source_; }

  /// Slice `index` with the extents `dims`; single bytes are shared, wider elements are byte-swapped.
  Tensor read(int64_t index, const Dims& dims) const {
    const std::string_view bytes = source_.bytes.substr(
        header_.header_bytes + static_cast<size_t>(index) * sample_bytes_, sample_bytes_);
    const auto raw = std::as_bytes(std::span(bytes));
    const auto width = static_cast<size_t>(tensor::bits_of(header_.dtype) / 8);
    if (width == 1) return Tensor::view(header_.dtype, dims, raw, source_.owner);
    Tensor t = Tensor::empty(header_.dtype, dims);
    for (size_t at = 0; at < raw.size(); at += width) {
      std::reverse_copy(raw.begin() + static_cast<ptrdiff_t>(at),
                        raw.begin() + static_cast<ptrdiff_t>(at + width), t.mutable_raw() + at);
    }
    return t;
  }

 private:
  SourceFile source_;
  IdxHeader header_;
  Dims sample_dims_;
  size_t sample_bytes_ = 0;
};

static_assert(std::endian::native == std::endian::little);

class IdxDataset : public Dataset {
 public:
  IdxDataset(IdxArray data, std::vector<IdxArray> labels)
      : data_(std::move(data)), labels_(std::move(labels)), dims_(data_.sample_dims()) {
    const bool image = data_.dtype() == DType::u8 && (dims_.size() == 2 || dims_.size() == 3);
    if (image && dims_.size() == 2) dims_.push_back(1);
    info_.format = "idx";
    info_.fields.push_back(
        {image ? "image" : "data", FieldKind::tensor, data_.dtype(), tensor::Shape::of(dims_), false});
    const SourceFile& file = data_.source();
    info_.shards.push_back({file.path, data_.size(), file.file_bytes});
    if (!labels_.empty()) add_labels();
  }

  int64_t size() const override { return data_.size(); }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    Sample sample;
    sample.values.push_back({info_.fields[0].name, data_.read(index, dims_), {}});
    if (!labels_.empty()) {
      const auto label = static_cast<int64_t>(labels_[0].read(index, {}).data<uint8_t>()[0]);
      sample.values.push_back({"label", Tensor::scalar(label), {}});
    }
    return sample;
  }

 private:
  void add_labels() {
    const IdxArray& labels = labels_[0];
    const std::string& path = labels.source().path;
    require(labels.dtype() == DType::u8 && labels.sample_dims().empty(),
            "IDX labels are not a list of bytes: '", path, "'");
    require(labels.size() == data_.size(), "IDX files differ in their counts: ", data_.size(), " images, ",
            labels.size(), " labels in '", path, "'");
    info_.fields.push_back({"label", FieldKind::tensor, DType::i64, {}, true});
    info_.shards.push_back({path, labels.size(), labels.source().file_bytes});
  }

  IdxArray data_;
  std::vector<IdxArray> labels_;  // none or one
  Dims dims_;                     // of one sample: [height, width, channels] for images
  DatasetInfo info_;
};

}  // namespace

DatasetPtr open_idx(const std::string& images_path, const std::string& labels_path, int64_t limit_bytes) {
  std::vector<IdxArray> labels;
  if (!labels_path.empty()) labels.emplace_back(labels_path, limit_bytes);
  return std::make_shared<IdxDataset>(IdxArray(images_path, limit_bytes), std::move(labels));
}

}  // namespace trireme::data
