// A dense row-major tensor on the host: element type, extents, and shared ownership of its bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/shape.h"

namespace trireme::tensor {

/// A view of memory kept alive by a shared owner (a heap block, a mapped file, another tensor). Copying is
/// cheap and shares the bytes; nothing but its creator may write through a tensor that others hold.
class Tensor {
 public:
  Tensor() = default;  ///< no tensor: `defined()` is false

  /// Allocates uninitialised memory aligned to 64 bytes. Throws exhausted if there is none.
  static Tensor empty(DType dtype, Dims dims);
  static Tensor zeros(DType dtype, Dims dims);
  /// Looks at `bytes` owned by `owner`. Throws invalid_argument unless the size fits dtype and dims exactly.
  static Tensor view(DType dtype, Dims dims, std::span<const std::byte> bytes,
                     std::shared_ptr<const void> owner);
  /// Copies `values` (row-major) into a new tensor.
  template <class T>
  static Tensor from(Dims dims, std::span<const T> values);
  template <class T>
  static Tensor from(Dims dims, std::initializer_list<T> values) {
    return from<T>(std::move(dims), std::span<const T>(values.begin(), values.size()));
  }
  template <class T>
  static Tensor scalar(T value) {
    return from<T>({}, std::span<const T>(&value, 1));
  }

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  size_t rank() const { return dims_.size(); }
  int64_t elements() const { return elements_; }
  int64_t bytes() const { return bytes_of(dtype_, elements_); }
  TensorType type() const { return {dtype_, Shape::of(dims_)}; }

  const std::byte* raw() const { return data_.get(); }
  std::byte* mutable_raw() { return const_cast<std::byte*>(data_.get()); }
  /// Elements as T. Throws internal if T is not the element type.
  template <class T>
  std::span<const T> data() const;
  template <class T>
  std::span<T> mutable_data();

  /// The same bytes under other extents of equal element count.
  Tensor reshaped(Dims dims) const;
  /// Rows [begin, end) of the outermost dimension, sharing the bytes. Needs byte-sized elements and rank
  /// >= 1.
  Tensor rows(int64_t begin, int64_t end) const;
  /// A copy with memory of its own.
  Tensor clone() const;

  /// Elements converted to double or int64, whatever the type; for small tensors (shapes, axes, scalars).
  std::vector<double> to_doubles() const;
  std::vector<int64_t> to_ints() const;

  /// Same type, extents and bytes.
  bool same_as(const Tensor& other) const;
  const std::shared_ptr<const std::byte>& owner() const { return data_; }

 private:
  DType dtype_ = DType::f32;
  Dims dims_;
  int64_t elements_ = 0;
  std::shared_ptr<const std::byte> data_;
};

/// 64-bit FNV-1a over type, extents and bytes: names a constant in texts and keys.
uint64_t content_hash(const Tensor& t);

template <class T>
Tensor Tensor::from(Dims dims, std::span<const T> values) {
  Tensor t = empty(dtype_of<T>(), std::move(dims));
  base::require(t.elements() == static_cast<int64_t>(values.size()), "tensor of shape ", to_string(t.dims()),
                " cannot hold ", values.size(), " values");
  std::copy(values.begin(), values.end(), t.mutable_data<T>().begin());
  return t;
}

template <class T>
std::span<const T> Tensor::data() const {
  base::check(dtype_ == dtype_of<T>(), "tensor holds ", name_of(dtype_), ", asked for ",
              name_of(dtype_of<T>()));
  return {reinterpret_cast<const T*>(data_.get()), static_cast<size_t>(elements_)};
}

template <class T>
std::span<T> Tensor::mutable_data() {
  base::check(dtype_ == dtype_of<T>(), "tensor holds ", name_of(dtype_), ", asked for ",
              name_of(dtype_of<T>()));
  return {reinterpret_cast<T*>(mutable_raw()), static_cast<size_t>(elements_)};
}

}  // namespace trireme::tensor
