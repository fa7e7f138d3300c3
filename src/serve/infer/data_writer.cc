// Receives the JSON `data` of one input value by value, and writes it directly to the tensor.
#include "serve/infer/data_writer.h"

#include <algorithm>
#include <utility>

namespace trireme::serve {

using tensor::DType;

namespace {

constexpr int64_t kOpen = -1;  ///< an extent that no array has told yet

tensor::Dims without_ones(tensor::Dims dims) {
  dims.erase(std::remove(dims.begin(), dims.end(), int64_t{1}), dims.end());
  return dims;
}

}  // namespace

DataWriter::DataWriter(WireTensor& tensor, size_t text_bytes)
    : tensor_(&tensor), elements_(wire_elements(tensor.name, tensor.dims)) {
  base::require(tensor.type != DType::f16 && tensor.type != DType::bf16, "input '", tensor.name,
                "' has datatype ", wire_name(tensor.type),
                ", which JSON cannot carry; send it as binary data");
  if (elements_ > static_cast<int64_t>(text_bytes)) refuse_shape();
  if (tensor.type) {
    tensor.values = tensor::Tensor::empty(*tensor.type, tensor.dims);
    return;
  }
  tensor.room = room_for_strings(elements_, static_cast<int64_t>(text_bytes));
  tensor.strings.reserve(static_cast<size_t>(elements_));
}

void DataWriter::refuse_shape() const {
  base::fail_invalid("Unable to parse 'data': Shape does not match true shape of 'data' field of input '",
                     tensor_->name, "', want ", tensor::to_string(tensor_->dims));
}

void DataWriter::refuse_value(std::string_view what) const {
  base::fail_invalid("Unable to parse 'data': input '", tensor_->name, "' holds ", what, " where datatype ",
                     wire_name(tensor_->type), " is wanted");
}

void DataWriter::start_array() {
  if (!children_.empty()) ++children_.back();
  children_.push_back(0);
}

void DataWriter::end_array() {
  const size_t depth = children_.size();
  const int64_t children = children_.back();
  children_.pop_back();
  if (extents_.size() < depth) extents_.resize(depth, kOpen);
  int64_t& extent = extents_[depth - 1];
  if (extent == kOpen) extent = children;
  if (extent != children) refuse_shape();
  is_over_ = children_.empty();
  if (!is_over_) return;
  // A flat list is checked by its count only; a nested one must have the shape, except for extents of 1.
  if (count_ != elements_ || (extents_.size() > 1 && without_ones(extents_) != without_ones(tensor_->dims)))
    refuse_shape();
}

void DataWriter::place() {
  const size_t depth = children_.size();
  if (value_depth_ == 0) value_depth_ = depth;
  if (depth != value_depth_ || count_ >= elements_) refuse_shape();
  ++children_.back();
}

template <class T>
void DataWriter::store(T value) {
  reinterpret_cast<T*>(tensor_->values.mutable_raw())[count_++] = value;
}

template <class T>
void DataWriter::store_integer(T value) {
  const auto fit = [&]<class To>(To) {
    if (!std::in_range<To>(value)) refuse_value("an integer out of range");
    store(static_cast<To>(value));
  };
  if (!tensor_->type) refuse_value("a number");
  switch (*tensor_->type) {
    case DType::f32: return store(static_cast<float>(value));
    case DType::f64: return store(static_cast<double>(value));
    case DType::i8: return fit(int8_t{});
    case DType::u8: return fit(uint8_t{});
    case DType::i16: return fit(int16_t{});
    case DType::u16: return fit(uint16_t{});
    case DType::i32: return fit(int32_t{});
    case DType::u32: return fit(uint32_t{});
    case DType::i64: return fit(int64_t{});
    case DType::u64: return fit(uint64_t{});
    default: break;
  }
  if (*tensor_->type != DType::boolean || (value != 0 && value != 1)) refuse_value("a number");
  store(value == 1);
}

void DataWriter::put_null() {
  place();
  refuse_value("a null");
}

void DataWriter::put(bool value) {
  place();
  if (tensor_->type != DType::boolean) refuse_value("a boolean");
  store(value);
}

void DataWriter::put(int64_t value) {
  place();
  store_integer(value);
}

void DataWriter::put(uint64_t value) {
  place();
  store_integer(value);
}

void DataWriter::put(double value) {
  place();
  if (tensor_->type == DType::f32) return store(static_cast<float>(value));
  if (tensor_->type == DType::f64) return store(value);
  refuse_value("a fraction");
}

void DataWriter::put(std::string_view value) {
  place();
  if (tensor_->type) refuse_value("a string");
  tensor_->strings.emplace_back(value);
  ++count_;
}

}  // namespace trireme::serve
