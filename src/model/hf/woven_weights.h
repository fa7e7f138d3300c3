// Matrices of experts that a checkpoint holds turned, those of several projections column by column in turn.
#pragma once

#include "model/hf/checkpoint.h"

namespace trireme::model::hf {

/// Part `part` of `parts` of a checkpoint's f32 [experts, in, parts * out] as ours: [experts, out, in]; of
/// biases [experts, parts * out] as [experts, out]. Throws invalid_argument for other extents.
tensor::Tensor unwoven_part(const tensor::Tensor& whole, size_t part, size_t parts, const std::string& name);

/// The checkpoint's of all our parts.
tensor::Tensor woven_whole(const std::vector<tensor::Tensor>& parts);

/// Part `part` of matrices in 4 bits, codes u8 [experts, parts * out, in / 32, 16] with neighbouring weights
/// in one byte, scales u8 [experts, parts * out, in / 32], as blocks of the format mxfp4 [experts * out, ..].
/// The same numbers, bit for bit.
StoredParam unwoven_blocks(const tensor::Tensor& codes, const tensor::Tensor& scales, size_t part,
                           size_t parts, const std::string& name);

}  // namespace trireme::model::hf
