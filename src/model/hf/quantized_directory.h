// Writing decoders as Hugging Face directories with matrices in few bits, in the layout of
// compressed-tensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/hf/round_weights.h"
#include "model/safetensors.h"

namespace trireme::model::hf {

/// What matrices become.
enum class DirectoryForm { int8, int4, fp8 };

struct DirectoryOptions {
  DirectoryForm to = DirectoryForm::int4;
  int64_t group = 0;       ///< weights that share a scale; 0: 128 of int4, whole rows of int8 and fp8
  bool has_zeros = false;  ///< of int4 and of int8 by groups: zero points
};

/// The matrix of a layer of the checkpoint, by its name there ("model.layers.0.mlp.up_proj.weight").
struct LayerMatrix {
  std::string name;
  /// The weights of the network that are rows of it, by their names in the graph: all read one input.
  std::vector<std::string> of_network;
  int64_t rows = 0, depth = 0;
};

/// The matrices of a directory that quantizing changes: those of linear layers but the head, routers, and
/// what no whole groups divide, which are left as they are. Throws unsupported for models that are no
/// decoders and for those that are quantized already.
struct DirectoryPlan {
  std::vector<LayerMatrix> layers;
  std::vector<std::pair<std::string, std::string>> left;  ///< linear layers that stay, and why
};
DirectoryPlan plan_directory(const std::string& directory, const DirectoryOptions& options);

/// What became of one matrix.
struct QuantizedLayer {
  std::string name;
  int64_t rows = 0, depth = 0, bytes_before = 0, bytes_after = 0;
  double relative = 0, largest = 0, of_products = 0;  ///< as in RoundedMatrix
  std::string why;                                    ///< why it stays; empty: it is stored in the form
};

struct DirectoryReport {
  std::vector<QuantizedLayer> layers;
  int64_t bytes_before = 0, bytes_after = 0;  ///< of all tensors
  /// A line a layer and one of sums.
  std::string text() const;
};

/// Sums of x x' over the inputs of a layer [depth, depth], or empty where there are none.
using MomentsOf = std::function<std::vector<float>(const LayerMatrix& layer)>;

/// Writes `to`: config.json with quantization_config, tensors in files of at most 5 GB, the companions of the
/// tokenizer. int4: `pack-quantized`; int8: `int-quantized` with activations quantized by token, or
/// `pack-quantized` where a group or zero points are asked for; fp8: `float-quantized`, a scale a row.
/// Memory: what is written, and one matrix as f32.
DirectoryReport write_quantized_directory(const std::string& from, const std::string& to,
                                          const DirectoryOptions& options, const MomentsOf& moments,
                                          base::ThreadPool& pool);

}  // namespace trireme::model::hf
