// Values of a column as a graph's input takes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/rows/rows.h"
#include "tensor/tensor.h"

namespace trireme::batch {

/// One input of a graph, and the column that it is read from.
struct BoundInput {
  std::string input, column;
  tensor::DType dtype = tensor::DType::f32;
  tensor::Shape row;  ///< extents of one row
};

/// Every value of `from` as `type`, exactly: throws invalid_argument for an integer that the type does not
/// hold, and for numbers with a fraction where integers are wanted. Floating-point numbers are rounded to the
/// nearest.
tensor::Tensor converted(const tensor::Tensor& from, tensor::DType type);

/// The extents in which a row of `dims` enters: those of `wanted`, where it has as many elements or fits as
/// it is. Throws invalid_argument otherwise.
tensor::Dims fitted(const tensor::Dims& dims, const tensor::Shape& wanted);

/// The row's value in the form of the input, without a dimension of rows. Throws invalid_argument for a
/// missing one or one that does not fit.
tensor::Tensor row_value(const BoundInput& input, const data::Column& column, int64_t row);

/// All rows at once, [rows, …], where they have one shape and none is missing; else nothing.
std::optional<tensor::Tensor> all_values(const BoundInput& input, const data::Column& column);

}  // namespace trireme::batch
