// Strings of requests into the numbers that stand for them in a model's graph, and back.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/image/picture_input.h"
#include "model/model.h"
#include "serve/infer/wire_tensor.h"

namespace trireme::serve {

/// A request's strings that its graph holds handles to: handle i is element i.
using StringTable = std::vector<std::string>;

/// The string inputs and outputs of one model. Empty for most.
class StringPorts {
 public:
  StringPorts() = default;
  /// Throws unsupported for an element type that no text spells: bool, FP16, BF16.
  explicit StringPorts(const model::Model& model);

  /// Makes the graph's one input, f32 [height, width, 3] or [3, height, width] behind a batch dimension, take
  /// picture files: BYTES [1] for each. Throws unsupported for a graph of another kind.
  void add_picture(const ir::Graph& graph, data::PixelValues values, bool is_batched);
  /// The extents behind the batch that the graph has in place of an input of picture files; null for others.
  const tensor::Dims* picture_dims(const std::string& input) const;

  bool takes(const std::string& input) const { return inputs_.contains(input); }
  bool gives(const std::string& output) const { return outputs_.contains(output); }
  /// The element type that the graph has in place of this string input or output.
  tensor::DType input_type(const std::string& name) const { return inputs_.at(name).type; }
  tensor::DType output_type(const std::string& name) const { return outputs_.at(name).type; }
  /// True where the graph only moves the strings about.
  bool is_handle(const std::string& input) const { return inputs_.at(input).is_handle; }

  /// The graph's tensor for a BYTES input; strings that it has handles to move to the end of `table`. Throws
  /// invalid_argument for a text that is not the number that the graph wants.
  tensor::Tensor enter(WireTensor given, StringTable& table) const;
  /// The BYTES tensor for an output of the graph.
  WireTensor leave(const std::string& name, const tensor::Tensor& values, const StringTable& table) const;

 private:
  struct Port {
    bool is_handle = false;
    tensor::DType type = tensor::DType::i64;
    std::optional<data::PictureInput> picture = {};
  };
  static tensor::Tensor decode(const data::PictureInput& picture, const WireTensor& given);
  std::map<std::string, Port> inputs_, outputs_;
};

/// The number that all of `text` spells in decimal, with a sign or, for a float, as INF or NaN; `name` is for
/// the message. Throws invalid_argument, also where the type cannot hold it.
void parse_number(const std::string& text, tensor::DType type, const std::string& name, void* to);

}  // namespace trireme::serve
