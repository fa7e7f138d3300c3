// A model as it was loaded: its graph, its weights inside the graph, and what the file says about itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/text/json.h"
#include "ir/graph.h"

namespace trireme::base {
class MappedFile;
}

namespace trireme::model {

/// How strings cross the border of a graph, which holds numbers only.
struct StringPort {
  enum class Form : uint8_t {
    number,  ///< the graph holds the number that the text spells (a Cast from or to string at the border)
    handle   ///< the graph holds i64 places in the caller's list of strings, and only moves them about
  };
  std::string name;  ///< of the input or output
  Form form = Form::number;
};

/// Weights are the params of the graph and look into the mapped file; a Model is cheap to copy.
struct Model {
  std::string name;
  std::string format;  ///< "onnx", "huggingface", "gguf" or "builder"
  /// Where tokenizer, labels and other companions of the model lie: a directory, or a GGUF file, which holds
  /// its own; "" if it has none.
  std::string directory;
  ir::Graph graph;    ///< role "infer": inputs to outputs, no loss
  int64_t opset = 0;  ///< default-domain opset of an ONNX file, else 0
  std::string producer;
  base::Json config;  ///< config.json of a Hugging Face directory, else null
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<StringPort> string_inputs, string_outputs;  ///< those that are not listed are numbers
  /// By name, the shapes that the file declares of outputs whose rank the operators do not tell.
  std::vector<std::pair<std::string, tensor::Shape>> declared_outputs;
  std::vector<std::shared_ptr<const base::MappedFile>> files;  ///< an ONNX model's and its external data's

  /// Gives back the memory that reading the files has taken. Call it when passes have made weights of their
  /// own of them, and again when kernels have packed those.
  void release_pages() const;
};

/// What the caller of a reader can deal with.
struct LoadOptions {
  bool takes_strings = false;  ///< honours string_inputs and string_outputs; else such models are refused
  /// Of a network that scores pairs of texts (hf/pair_scores.h) the types of tokens are an input; else all
  /// are of the first text.
  bool takes_pairs = false;
  /// Large weights have types and no content (tensor/absent.h): the model is looked at and not run. Weights
  /// of checkpoints are then not read, and need not be there, unless they are quantized: those become what
  /// products read.
  bool is_without_content = false;
};

}  // namespace trireme::model
