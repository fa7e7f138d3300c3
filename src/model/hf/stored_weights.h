// Matrices of quantized checkpoints (AWQ, GPTQ, compressed-tensors, 8-bit floats) as products read them.
#pragma once

#include <functional>
#include <string>

#include "model/hf/quantization.h"
#include "model/params.h"

namespace trireme::model::hf {

/// Finds a tensor of the checkpoint by its name; null if there is none.
using FindTensor = std::function<const tensor::Tensor*(const std::string& name)>;

/// The matrix of the layer `stem` ("model.layers.0.mlp.up_proj"), if the checkpoint has it quantized: rows of
/// `k` weights. Bytes and 8-bit floats stay in the mapped file; codes of 4 bits, codes by columns, and bytes
/// in words are moved to their places, without any change of value: W = scale (q - zero) is what it was, bit
/// for bit. Columns whose groups are not neighbours are sorted by group, and `order` says how. Scales
/// become f32; one of a row, a matrix or a block is repeated for each group of 32 to 128 weights.
/// Undefined data: the layer is not quantized. Throws unsupported or invalid_argument for what does not fit,
/// naming the layer.
StoredParam stored_weight(const FindTensor& find, const Quantization& how, const std::string& stem,
                          int64_t k);

/// The numbers of a weight that is not plain: f32 [rows, width].
tensor::Tensor floats_of(const StoredParam& stored);

}  // namespace trireme::model::hf
