// BERT-family encoders as one readable graph (Devlin et al. 2018; post-norm, absolute positions).
#include "model/hf/bert.h"

#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "model/builder.h"
#include "model/hf/pooling.h"
#include "model/safetensors.h"

namespace trireme::model::hf {
namespace {

namespace fs = std::filesystem;
using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

struct BertConfig {
  int64_t width, layers, heads, inner, positions, vocabulary, token_types;
  double epsilon;
  std::string activation;
};

BertConfig read_config(const base::Json& json) {
  const auto positive = [&](std::string_view key) {
    const int64_t value = json.at(key).as_int();
    base::require(value > 0 && value < (int64_t{1} << 31), "config.json: ", key, " is ", value);
    return value;
  };
  BertConfig c{.width = positive("hidden_size"),
               .layers = positive("num_hidden_layers"),
               .heads = positive("num_attention_heads"),
               .inner = positive("intermediate_size"),
               .positions = positive("max_position_embeddings"),
               .vocabulary = positive("vocab_size"),
               .token_types = positive("type_vocab_size"),
               .epsilon = json.get_or("layer_norm_eps", 1e-12),
               .activation = json.get_or("hidden_act", "gelu")};
  base::require(c.width % c.heads == 0, "config.json: hidden_size ", c.width, " is no multiple of ", c.heads,
                " heads");
  const std::string positions = json.get_or("position_embedding_type", "absolute");
  if (positions != "absolute") base::fail_unsupported("BERT with ", positions, " positions");
  if (json.get_or("is_decoder", false)) base::fail_unsupported("BERT as a decoder");
  return c;
}

/// f16 and bf16 -> f32; f32 stays where it is.
Tensor to_f32(const Tensor& t) {
  if (t.dtype() == DType::f32) return t;
  if (t.dtype() != DType::f16 && t.dtype() != DType::bf16) {
    base::fail_unsupported("weights of type ", tensor::name_of(t.dtype()));
  }
  Tensor out = Tensor::empty(DType::f32, t.dims());
  const auto* bits = reinterpret_cast<const uint16_t*>(t.raw());
  auto values = out.mutable_data<float>();
  const bool is_half = t.dtype() == DType::f16;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = is_half ? tensor::f16_bits_to_f32(bits[i]) : tensor::bf16_bits_to_f32(bits[i]);
  }
  return out;
}

/// Weights by their name in the checkpoint, with or without the "bert." that task models put in front.
class Weights {
 public:
  explicit Weights(const std::string& path) : file_(Safetensors::open(path)) {}

  Tensor get(const std::string& name, const tensor::Dims& dims) const {
    const Tensor* t = file_.find(name);
    if (t == nullptr) t = file_.find("bert." + name);
    // Checkpoints converted from TensorFlow say gamma and beta.
    if (t == nullptr && name.ends_with("LayerNorm.weight")) t = file_.find(renamed(name, "weight", "gamma"));
    if (t == nullptr && name.ends_with("LayerNorm.bias")) t = file_.find(renamed(name, "bias", "beta"));
    if (t == nullptr) base::fail(base::ErrorCode::not_found, "the checkpoint has no tensor '", name, "'");
    base::require(t->dims() == dims, "tensor '", name, "' is ", t->type().to_string(), ", the config wants ",
                  tensor::to_string(dims));
    return to_f32(*t);
  }

 private:
  static std::string renamed(const std::string& name, std::string_view from, std::string_view to) {
    return name.substr(0, name.size() - from.size()) + std::string(to);
  }
  Safetensors file_;
};

/// Tensors of equal rows one under the other.
Tensor stack_rows(const std::vector<Tensor>& parts) {
  tensor::Dims dims = parts[0].dims();
  dims[0] = 0;
  for (const Tensor& t : parts) dims[0] += t.dims()[0];
  Tensor out = Tensor::empty(parts[0].dtype(), dims);
  std::byte* at = out.mutable_raw();
  for (const Tensor& t : parts) {
    std::memcpy(at, t.raw(), static_cast<size_t>(t.bytes()));
    at += t.bytes();
  }
  return out;
}

class BertBuilder {
 public:
  BertBuilder(ir::Graph& graph, const BertConfig& config, const Weights& weights)
      : builder_(graph), c_(config), weights_(weights) {}

  /// ids, types i64 [batch, seq] (types may be kNoValue), mask i64 [batch, seq] -> [batch, seq, width].
  ValueId run(ValueId ids, ValueId types, ValueId mask) {
    ValueId x = embed(ids, types);
    for (int64_t i = 0; i < c_.layers; ++i) x = layer(x, mask, base::concat("encoder.layer.", i));
    return x;
  }

 private:
  ValueId param(Builder& b, const std::string& name, const tensor::Dims& dims) {
    return b.param(name, weights_.get(name, dims));
  }

  /// Word, position and type vectors added and normalised -> [batch, seq, width].
  ValueId embed(ValueId ids, ValueId types) {
    Builder b = builder_.within("embeddings");
    const std::string at = "embeddings.";
    const ValueId words = param(b, at + "word_embeddings.weight", {c_.vocabulary, c_.width});
    const ValueId positions = param(b, at + "position_embeddings.weight", {c_.positions, c_.width});
    const ValueId length = b.op("shape", {ids}, {{"start", int64_t{1}}, {"end", int64_t{2}}});  // [1]
    ValueId place = b.op("slice", {positions, b.ints({0}), length, b.ints({0})});  // [seq, width]
    const Tensor type_table = weights_.get(at + "token_type_embeddings.weight", {c_.token_types, c_.width});
    if (types == ir::kNoValue) {
      place = b.op("add", {place, b.param(at + "token_type_embeddings.weight", type_table.rows(0, 1))});
    } else {
      const ValueId table = b.param(at + "token_type_embeddings.weight", type_table);
      place = b.op("add", {place, b.op("gather", {table, types}, {{"axis", int64_t{0}}})});
    }
    const ValueId x = b.op("gather", {words, ids}, {{"axis", int64_t{0}}});  // [batch, seq, width]
    return norm(b, b.op("add", {x, place}), at + "LayerNorm");
  }

  ValueId norm(Builder& b, ValueId x, const std::string& name) {
    const ValueId scale = param(b, name + ".weight", {c_.width}),
                  shift = param(b, name + ".bias", {c_.width});
    return b.op("layer_norm", {x, scale, shift}, {{"epsilon", c_.epsilon}, {"axis", int64_t{-1}}});
  }

  ValueId linear(Builder& b, ValueId x, const std::string& name, int64_t out, int64_t in) {
    return b.linear(x, param(b, name + ".weight", {out, in}), param(b, name + ".bias", {out}));
  }

  /// layer_norm(x + y): the end of both halves of a block.
  ValueId add_norm(Builder& b, ValueId x, ValueId y, const std::string& name) {
    const ValueId scale = param(b, name + ".weight", {c_.width}),
                  shift = param(b, name + ".bias", {c_.width});
    return b.op("add_layer_norm", {y, x, scale, shift}, {{"epsilon", c_.epsilon}});
  }

  ValueId layer(ValueId x, ValueId mask, const std::string& at) {
    Builder b = builder_.within(at);
    const ValueId context = attention(x, mask, at + ".attention.self");
    const ValueId attended = linear(b, context, at + ".attention.output.dense", c_.width, c_.width);
    x = add_norm(b, x, attended, at + ".attention.output.LayerNorm");
    ValueId y = linear(b, x, at + ".intermediate.dense", c_.inner, c_.width);
    y = activation(b, y);
    y = linear(b, y, at + ".output.dense", c_.width, c_.inner);
    return add_norm(b, x, y, at + ".output.LayerNorm");
  }

  ValueId activation(Builder& b, ValueId x) {
    if (c_.activation == "gelu") return b.op("gelu", {x});
    if (c_.activation == "gelu_new" || c_.activation == "gelu_pytorch_tanh") {
      return b.op("gelu", {x}, {{"approximate", std::string("tanh")}});
    }
    if (c_.activation == "relu") return b.op("relu", {x});
    base::fail_unsupported("config.json: hidden_act '", c_.activation, "'");
  }

  /// Self-attention: x [batch, seq, width] -> the same. Query, key and value are one product with stacked
  /// weights.
  ValueId attention(ValueId x, ValueId mask, const std::string& at) {
    Builder b = builder_.within(at);
    const int64_t h = c_.width, d = h / c_.heads;
    std::vector<Tensor> weights, biases;
    for (const char* part : {".query", ".key", ".value"}) {
      weights.push_back(weights_.get(at + part + ".weight", {h, h}));
      biases.push_back(weights_.get(at + part + ".bias", {h}));
    }
    const ValueId weight = b.param(at + ".qkv.weight", stack_rows(weights));  // [3 width, width]
    const ValueId bias = b.param(at + ".qkv.bias", stack_rows(biases));
    const auto qkv =
        b.ops("split", {b.linear(x, weight, bias)}, {{"axis", int64_t{-1}}, {"num_outputs", int64_t{3}}}, 3);
    std::vector<ValueId> operands;  // each [batch, seq, heads, d]
    for (ValueId part : qkv) operands.push_back(b.reshape(part, {0, 0, c_.heads, d}));
    operands.push_back(mask);
    return b.reshape(b.op("attention_bsnd", operands), {0, 0, h});
  }

  Builder builder_;
  const BertConfig& c_;
  const Weights& weights_;
};

}  // namespace

Model load_bert(const std::string& directory, const BertOptions& options) {
  const fs::path root(directory);
  Model model;
  model.format = "huggingface";
  model.directory = directory;
  model.name = root.filename().string();
  model.config = base::parse_json(base::read_file((root / "config.json").string()));
  const std::string type = model.config.get_or("model_type", "");
  if (type != "bert") base::fail_unsupported("Hugging Face model type '", type, "'; supported: bert");
  const BertConfig config = read_config(model.config);
  const Weights weights((root / "model.safetensors").string());

  ir::Graph& g = model.graph;
  g.name = model.name;
  const tensor::TensorType tokens{DType::i64, {tensor::Dim::symbol("batch"), tensor::Dim::symbol("seq")}};
  const ValueId ids = g.add_input("input_ids", tokens), mask = g.add_input("attention_mask", tokens);
  const ValueId types = options.has_token_types ? g.add_input("token_type_ids", tokens) : ir::kNoValue;
  const ValueId hidden = BertBuilder(g, config, weights).run(ids, types, mask);
  g.add_output(hidden, "last_hidden_state");
  if (options.has_embedding) {
    Builder b = Builder(g).within("pooling");
    g.add_output(pool(b, hidden, mask, read_pooling(directory)), "sentence_embedding");
  }
  g.sort();
  return model;
}

}  // namespace trireme::model::hf
