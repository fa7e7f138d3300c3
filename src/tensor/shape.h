// Shapes with named symbolic dimensions, and the types of values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace trireme::tensor {

/// Concrete extents, outermost first.
using Dims = std::vector<int64_t>;

/// Product of the extents (1 for a scalar). Throws invalid_argument for a negative extent or a product over
/// 2^56.
int64_t element_count(const Dims& dims);
std::string to_string(const Dims& dims);

/// One extent: a number, a named symbol ("batch"), or unknown ("?": depends on data or was not declared).
class Dim {
 public:
  Dim(int64_t value) : value_(value) {}  // NOLINT: a number is a Dim
  static Dim symbol(std::string name);
  static Dim unknown() { return symbol("?"); }

  bool is_static() const { return value_ >= 0; }
  bool is_unknown() const { return value_ < 0 && name_ == "?"; }
  int64_t value() const;  ///< throws internal for a symbol
  const std::string& name() const { return name_; }
  std::string to_string() const;
  /// Two unknowns are not known to be equal, hence unequal.
  bool operator==(const Dim& other) const;

 private:
  int64_t value_;
  std::string name_;
};

/// A list of Dims, or "unknown rank".
class Shape {
 public:
  Shape() = default;
  Shape(std::vector<Dim> dims) : dims_(std::move(dims)) {}  // NOLINT: a list of Dims is a Shape
  Shape(std::initializer_list<Dim> dims) : dims_(dims) {}
  static Shape of(const Dims& dims);
  static Shape unknown_rank();
  /// `rank` unknown dimensions.
  static Shape unknown(size_t rank);

  bool has_rank() const { return has_rank_; }
  size_t rank() const;  ///< throws unsupported when the rank is unknown
  const Dim& operator[](size_t i) const { return dims_[i]; }
  Dim& operator[](size_t i) { return dims_[i]; }
  const std::vector<Dim>& dims() const { return dims_; }
  bool is_static() const;
  Dims to_dims() const;  ///< throws internal unless is_static()
  /// Element count if static.
  std::optional<int64_t> elements() const;
  std::string to_string() const;  ///< "[batch,128,?]", "[*]" for unknown rank
  bool operator==(const Shape& other) const = default;

 private:
  std::vector<Dim> dims_;
  bool has_rank_ = true;
};

struct TensorType {
  DType dtype = DType::f32;
  Shape shape;
  bool operator==(const TensorType&) const = default;
  std::string to_string() const;  ///< "f32[batch,128]"
};

/// Bytes of a value of this type. Throws internal unless the shape is static.
int64_t bytes_of(const TensorType& type);

}  // namespace trireme::tensor
