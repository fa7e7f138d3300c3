// Rewriting language models as GGUF files in another precision, tensor by tensor, with the error of each.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/threads/thread_pool.h"
#include "tensor/gguf/gguf_file.h"
#include "tensor/gguf/gguf_writer.h"

namespace trireme::model::gguf {

/// A tensor to write.
struct SourceTensor {
  std::string name;
  tensor::Dims dims;
  std::string stored_as;                       ///< "f32", "bf16", "q8_0"
  std::function<std::vector<float>()> values;  ///< row-major
  std::span<const std::byte> bytes;            ///< as it is stored; empty: only `values` gives it
  std::string of_network = {};                 ///< the weight in the graph that has its input; empty: `name`
};

/// A model to write: metadata with the tokenizer, and tensors in the file's order.
struct GgufSource {
  tensor::GgufWriter metadata;
  std::vector<SourceTensor> tensors;
  std::shared_ptr<const void> owner;  ///< of what the tensors look into
};

/// Reads an open GGUF file again. Throws unsupported for element types that cannot be read.
GgufSource gguf_source(const tensor::GgufFile& file);

/// A Hugging Face directory of a form that GGUF has (hf/forms), under GGUF's names. Throws unsupported for
/// others.
GgufSource huggingface_source(const std::string& directory);

/// What became of one tensor.
struct QuantizedTensor {
  std::string name, from, to;
  tensor::Dims dims;
  int64_t bytes_before = 0, bytes_after = 0;
  double relative = 0;         ///< |W - written| / |W|, by Frobenius norms
  double largest = 0;          ///< largest difference of one weight
  bool by_importance = false;  ///< channels counted by what they are like on texts
  std::string why;             ///< why it is not in the format that was asked for; empty: it is
};

struct QuantizeReport {
  std::vector<QuantizedTensor> tensors;
  int64_t bytes_before() const;
  int64_t bytes_after() const;
  /// A line a tensor and one of sums.
  std::string text() const;
};

/// How much each channel of a weight's input counts [width], by the weight's name in the graph.
using Importance = std::map<std::string, std::vector<float>>;

/// Writes `path` with every matrix in `format` ("q4_k", "q8_0", "bf16", "f32"). Vectors, routers and tables
/// of positions stay in f32; the head (with tied weights the embedding), as llama.cpp has it, gets q6_k where
/// fewer than 6 bits are asked for and its rows allow. Rows that are no whole blocks of the format get q8_0,
/// else f16. Blocks that are in the format already are copied. Memory: one tensor as f32 and in its new form.
/// `importance`: by which formats that search for their scales (q2_k to q6_k, iq4_nl) weigh errors. Throws
/// invalid_argument for an unknown format.
QuantizeReport write_quantized(const GgufSource& source, const std::string& format, const std::string& path,
                               base::ThreadPool& pool, const Importance& importance = {});

}  // namespace trireme::model::gguf
