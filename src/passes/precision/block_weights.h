// Float matrices in block formats: how they are made from a model's weights, and what that loses.
#pragma once

#include "ops/blocks/blocks.h"
#include "ops/weight_only/weight_only.h"

namespace trireme::passes {

/// The format that a matrix of depth `k` gets where `wanted` was asked for: q8_0 where only its blocks of 32
/// fit, null where no whole blocks do.
const tensor::BlockFormat* fitting_format(const tensor::BlockFormat& wanted, int64_t k);

/// A float matrix, [n, k], or [k, n] where it is not by rows, as u8 [n, bytes of a row]. Some rows at a time
/// are widened to f32; the team of all processors shares the work. Absent, and without error, where the
/// matrix is. Throws invalid_argument where a weight is not finite.
tensor::Tensor store_blocks(const tensor::Tensor& weights, bool by_rows, const tensor::BlockFormat& format,
                            ops::WeightError& error);

/// How far products are from those of f32 rows when rows are rounded to 8 bits: the relative error of normal
/// random rows by some rows of `blocks`.
double rounded_rows_error(const tensor::Tensor& blocks, const tensor::BlockFormat& format);

}  // namespace trireme::passes
