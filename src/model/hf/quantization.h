// Which way of storing matrices in few bits a config.json names.
#pragma once

#include <string>

#include "base/text/json.h"

namespace trireme::model::hf {

/// What quantization_config says that tensors do not show. Which layers are stored so, in how many bits and
/// by which groups, is what the checkpoint has: lists of those that are not (`ignore`,
/// `modules_to_not_convert`) say the same.
struct Quantization {
  enum class Method { none, awq, gptq, compressed, float8, mxfp4 };
  Method method = Method::none;
  bool lacks_one = false;                     ///< gptq: zero points are stored less one
  int64_t block_rows = 0, block_columns = 0;  ///< of 8-bit floats with a scale for each block; 0: none
};

/// Reads `quantization_config` (or `compression_config`). Throws unsupported for a method, format or option
/// that is not known, naming it.
Quantization read_quantization(const base::Json& config);

}  // namespace trireme::model::hf
